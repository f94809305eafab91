// The shared segment: what it leaves behind, and what it says where it cannot be.
#include "comm/shared_segment.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/faults.h"
#include "base/size.h"
#include "comm/ranks.h"

namespace transload::testing {
namespace {

/// A folder of this process's in memory: other tests make segments in /dev/shm meanwhile.
std::string folder() {
  const std::string path = "/dev/shm/comm_test_" + std::to_string(::getpid());
  os::make_folders(path);
  return path;
}

std::size_t names_in(const std::string& path) {
  std::vector<std::string> names;
  os::list_folder(path, &names);
  return names.size();
}

/// The test's folder, removed at its end.
struct OwnFolder {
  const std::string path = folder();
  ~OwnFolder() { os::remove(path); }
};

}  // namespace

TEST_CASE("a segment has a name only until all have attached") {
  const OwnFolder own;
  SharedSegment made, attached;
  REQUIRE(made.create(1 * MiB, own.path) == "");
  CHECK(names_in(own.path) == 1);
  REQUIRE(attached.attach(made.path(), 1 * MiB) == "");
  made.remove_name();
  CHECK(names_in(own.path) == 0);
  made.data()[4097] = std::byte{7};
  CHECK(attached.data()[4097] == std::byte{7});
  CHECK(attached.data()[4098] == std::byte{0});
}

TEST_CASE("what a killed job left is removed at the next start, what a living one holds is not") {
  const OwnFolder own;
  SharedSegment living;
  REQUIRE(living.create(64 * KiB, own.path) == "");
  const std::vector<Ending> endings = run_processes(
      2, CommOptions{},
      [&](Communicator& c) {
        SharedSegment lost;
        if (c.rank() == 0 && lost.create(64 * KiB, own.path) == "") ::kill(::getpid(), SIGKILL);
        c.barrier();
      },
      10);
  CHECK(endings[0].killed);
  CHECK(names_in(own.path) == 2);
  CHECK(remove_leftovers(own.path) == 1);
  CHECK(names_in(own.path) == 1);
  CHECK(os::kind_of(living.path()) == os::PathKind::file);
}

TEST_CASE("a segment that cannot be says why") {
  SharedSegment segment;
  CHECK_THAT(segment.create(1ull << 50), Catch::Contains("/dev/shm has ") && Catch::Contains("are needed"));
  CHECK_THAT(segment.create(1 * MiB, "/no/such/folder"), Catch::Contains("/no/such/folder"));
  const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::allocate}, "/dev/shm"), 1, -ENOSPC));
  CHECK_THAT(segment.create(1 * MiB), Catch::Contains("No space left"));
  segment = SharedSegment();
}

#ifdef TRANSLOAD_HAVE_GLOO
TEST_CASE("where memory cannot be shared the ranks go over TCP, and all know why") {
  const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::allocate}, "/dev/shm"), 1, -ENOSPC, true));
  std::vector<std::string> ways_taken(3);
  const std::vector<std::string> errors = run_threads(3, options_of(ways()[0]), [&](Communicator& c) {
    c.barrier();
    ways_taken[static_cast<std::size_t>(c.rank())] = std::string(c.transport()) + "; " + c.note();
  });
  CHECK(errors == std::vector<std::string>(3));
  for (const std::string& way : ways_taken)
    CHECK_THAT(way, Catch::StartsWith("TCP; ") && Catch::Contains("No space left"));
}
#endif

}  // namespace transload::testing
