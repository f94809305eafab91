// Scratch folders: private, removed at the end; those of dead processes reclaimed, of living ones never touched.
#include "offload/scratch_folder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"

using namespace transload;
namespace fs = std::filesystem;

namespace {

struct Parent {
  Parent() : path((fs::temp_directory_path() / ("scratch-test-" + std::to_string(::getpid()))).string()) {
    fs::create_directories(path);
  }
  ~Parent() { fs::remove_all(path); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  std::string path;
};

void fill(const ScratchFolder& scratch) {
  fs::create_directories(scratch.path() + "/store");
  std::ofstream(scratch.path() + "/store/slots-0000") << "bytes";
}

}  // namespace

TEST_CASE("A scratch folder goes with its owner, whatever lies in it") {
  Parent parent;
  {
    const ScratchFolder one(parent.path), two(parent.path);
    REQUIRE(one.path() != two.path());
    fill(one);
    REQUIRE(parent.entries() == 2);
  }
  REQUIRE(parent.entries() == 0);
}

TEST_CASE("What a killed process left is reclaimed, what a living one has is not") {
  Parent parent;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto scratch = std::make_unique<ScratchFolder>(parent.path);
    fill(*scratch);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  { const ScratchFolder beside(parent.path); }
  REQUIRE(parent.entries() == 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(parent.entries() == 1);
  const ScratchFolder after(parent.path);
  REQUIRE(parent.entries() == 1);
  REQUIRE(fs::exists(after.path()));
}

TEST_CASE("Foreign files beside scratch folders stay; a folder without an owner is a leftover") {
  Parent parent;
  std::ofstream(parent.path + "/model.bin") << "weights";
  fs::create_directories(parent.path + "/transload-other");
  fs::create_directories(parent.path + "/transload-scratch-0123456789abcdef");
  { const ScratchFolder scratch(parent.path); }
  REQUIRE(fs::exists(parent.path + "/model.bin"));
  REQUIRE(fs::exists(parent.path + "/transload-other"));
  REQUIRE(parent.entries() == 2);
}

TEST_CASE("A parent that is missing or a file is refused by name") {
  Parent parent;
  std::ofstream(parent.path + "/file") << "x";
  REQUIRE_THROWS_AS(ScratchFolder(parent.path + "/missing"), InputError);
  REQUIRE_THROWS_AS(ScratchFolder(parent.path + "/file"), InputError);
}
