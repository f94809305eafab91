#include "base/os.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/faults.h"
#include "base/size.h"

namespace transload::os {
namespace {

struct TemporaryFolder {
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "transload-os-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace

TEST_CASE("a file gives back what was written, from 0 bytes on") {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {0u, 1u, 4095u, 4096u, 4097u}) {
    const std::string path = folder.path + "/file";
    const File file = File::open_or_throw(path, O_RDWR | O_CREAT | O_TRUNC);
    std::vector<unsigned char> written(bytes), found(bytes);
    for (std::size_t i = 0; i < bytes; ++i) written[i] = static_cast<unsigned char>(i * 7 + 1);
    file.write_or_throw(written.data(), bytes, 3);
    file.read_or_throw(found.data(), bytes, 3);
    CHECK(found == written);
    CHECK(file.size() == static_cast<std::int64_t>(bytes == 0 ? 0 : bytes + 3));
    unsigned char beyond = 0;
    CHECK_THROWS_AS(file.read_or_throw(&beyond, 1, bytes + 3), IoError);
  }
}

TEST_CASE("short counts and passing refusals are gone over, errors are not") {
  const TemporaryFolder folder;
  const File file = File::open_or_throw(folder.path + "/file", O_RDWR | O_CREAT);
  std::array<char, 1000> written{}, found{};
  for (std::size_t i = 0; i < written.size(); ++i) written[i] = static_cast<char>(i);
  for (const std::int64_t answer : {std::int64_t{1}, std::int64_t{999}, std::int64_t{-EINTR}, std::int64_t{-EAGAIN}}) {
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      found.fill(0);
      const InterceptScope scope(fail_at(ops({kind}), 1, answer));
      file.write_or_throw(written.data(), written.size(), 0);
      file.read_or_throw(found.data(), found.size(), 0);
      CHECK(found == written);
    }
  }
  const InterceptScope scope(fail_at(ops({OpKind::write}), 2, -ENOSPC));
  file.write_or_throw(written.data(), 10, 0);
  try {
    file.write_or_throw(written.data(), 100, 7);
    FAIL("no error");
  } catch (const IoError& error) {
    CHECK(error.details().error == ENOSPC);
    CHECK(error.details().path == folder.path + "/file");
    CHECK(error.details().wanted == 100);
    CHECK(error.details().offset == 7);
  }
}

TEST_CASE("what is refused for ever ends") {
  const TemporaryFolder folder;
  const File file = File::open_or_throw(folder.path + "/file", O_RDWR | O_CREAT);
  for (const int error : {EAGAIN, EINTR}) {
    const InterceptScope scope(fail_at(ops({OpKind::write}), 1, -error, true));
    CHECK_THROWS_AS(file.write_or_throw("x", 1, 0), IoError);
  }
}

TEST_CASE("a shortened vector ends inside a piece") {
  const TemporaryFolder folder;
  const File file = File::open_or_throw(folder.path + "/file", O_RDWR | O_CREAT);
  std::array<char, 5> a = {'a', 'b', 'c', 'd', 'e'};
  std::array<char, 4> b = {'f', 'g', 'h', 'i'};
  const std::array<iovec, 2> pieces = {iovec{a.data(), a.size()}, iovec{b.data(), b.size()}};
  const InterceptScope scope(fail_at(ops({OpKind::write}), 1, 7));
  CHECK(file.write(pieces, 0) == 7);
  CHECK(file.size() == 7);
  CHECK(file.write(pieces, 0) == 9);
}

TEST_CASE("interceptors nest and go away") {
  const TemporaryFolder folder;
  auto outer_count = std::make_shared<std::atomic<std::uint64_t>>(0);
  auto inner_count = std::make_shared<std::atomic<std::uint64_t>>(0);
  {
    const InterceptScope outer(count_into(ops({OpKind::stat}), outer_count));
    kind_of(folder.path);
    {
      const InterceptScope inner(count_into(ops({OpKind::stat}, "nowhere"), inner_count));
      kind_of(folder.path);
      kind_of(folder.path + "/nowhere");
    }
    kind_of(folder.path);
  }
  kind_of(folder.path);
  CHECK(*outer_count == 2);
  CHECK(*inner_count == 1);
}

TEST_CASE("a process can be told to die at its nth call") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const InterceptScope scope(kill_at(ops({OpKind::write}), 3));
    const File file = File::open_or_throw(folder.path + "/file", O_RDWR | O_CREAT);
    for (std::uint64_t i = 0; i < 5; ++i) file.write_or_throw("x", 1, i);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  CHECK(File::open_or_throw(folder.path + "/file", O_RDONLY).size() == 2);
}

TEST_CASE("folders are made, listed and told from files") {
  const TemporaryFolder folder;
  CHECK(make_folders(folder.path + "/a/b/c") == 0);
  CHECK(make_folders(folder.path + "/a/b/c") == 0);
  CHECK(kind_of(folder.path + "/a/b/c") == PathKind::folder);
  { const File file = File::open_or_throw(folder.path + "/a/file", O_RDWR | O_CREAT); }
  CHECK(kind_of(folder.path + "/a/file") == PathKind::file);
  CHECK(kind_of(folder.path + "/a/none") == PathKind::missing);
  CHECK(make_folders(folder.path + "/a/file") == -ENOTDIR);
  CHECK(make_folders(folder.path + "/a/file/deeper") == -ENOTDIR);
  std::vector<std::string> names;
  CHECK(list_folder(folder.path + "/a", &names) == 0);
  CHECK(names == std::vector<std::string>{"b", "file"});
  CHECK(list_folder(folder.path + "/none", &names) == -ENOENT);
  CHECK(rename(folder.path + "/a/file", folder.path + "/a/other") == 0);
  CHECK(remove(folder.path + "/a/file") == -ENOENT);
  CHECK(remove(folder.path + "/a/other") == 0);
  CHECK(File::open_or_throw(folder.path, O_RDONLY | O_DIRECTORY).sync_all() == 0);
  Space space;
  CHECK(space_of(folder.path, &space) == 0);
  CHECK(space.total_bytes > space.free_bytes);
  CHECK_FALSE(space.file_system.empty());
}

TEST_CASE("a lock is held by one, or shared") {
  const TemporaryFolder folder;
  const std::string path = folder.path + "/lock";
  File first = File::open_or_throw(path, O_RDWR | O_CREAT);
  const File second = File::open_or_throw(path, O_RDWR);
  CHECK(first.lock(false) == 0);
  CHECK(second.lock(false) == -EWOULDBLOCK);
  CHECK(second.lock(true) == -EWOULDBLOCK);
  first.close();
  CHECK(second.lock(true) == 0);
  const File third = File::open_or_throw(path, O_RDWR);
  CHECK(third.lock(true) == 0);
}

TEST_CASE("memory is aligned, usable to its end, and refused as an error") {
  for (const std::uint64_t bytes : {std::uint64_t{1}, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1}) {
    const Memory memory(bytes, bytes % 2 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % (2 * MiB) == 0);
    std::memset(memory.data(), 7, bytes);
    CHECK(memory.data()[bytes - 1] == std::byte{7});
  }
  CHECK(Memory(0, true).data() == nullptr);
  const InterceptScope scope(fail_at(ops({OpKind::map}), 1, -ENOMEM));
  CHECK_THROWS_AS(Memory(MiB, false), IoError);
}

}  // namespace transload::os
