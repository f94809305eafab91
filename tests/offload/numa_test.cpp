// NUMA: nodes and the node nearest to a device, on a topology of two nodes with a GPU at each (two_nodes.xml), and
// memory bound on the machine that runs this.
#include "offload/numa/numa.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace transload;
using Catch::Matchers::Contains;

namespace {

/// hwloc sees another machine while this lives.
class OtherMachine {
 public:
  OtherMachine() { ::setenv("HWLOC_XMLFILE", TRANSLOAD_SOURCE_DIR "/tests/offload/two_nodes.xml", 1); }
  ~OtherMachine() {
    ::unsetenv("HWLOC_XMLFILE");
    ::unsetenv("HWLOC_THISSYSTEM");
  }
};

class Pages {
 public:
  Pages() : at_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(at_ != MAP_FAILED);
  }
  ~Pages() { ::munmap(at_, kBytes); }
  static constexpr std::uint64_t kBytes = 1 << 20;
  void* at() const { return at_; }

 private:
  void* at_;
};

}  // namespace

TEST_CASE("This machine has a node, and memory can be bound to it or the system says why not") {
  const numa::Nodes found = numa::nodes();
  REQUIRE(!found.nodes.empty());
  CHECK(found.nodes.front().bytes > 0);
  const Pages pages;
  const std::string reason = numa::bind(pages.at(), Pages::kBytes, found.nodes.front().node);
  if (found.nodes.size() == 1) CHECK(reason.empty());
  CHECK_THAT(numa::bind(pages.at(), Pages::kBytes, 999), Contains("NUMA node 999") || Contains("no hwloc"));
  static_cast<volatile char*>(pages.at())[Pages::kBytes - 1] = 1;
}

TEST_CASE("Of a device that nobody shows the node is not known, and why") {
  if (numa::nodes().nodes.size() > 1) {
    const numa::Near near = numa::nearest_node("ffff:ff:1f.7");
    CHECK(near.node == -1);
    CHECK_THAT(near.reason, Contains("ffff:ff:1f.7"));
  } else {
    CHECK(numa::nearest_node("ffff:ff:1f.7").node == numa::nodes().nodes.front().node);
  }
}

TEST_CASE("The node nearest to a GPU is the one whose bus it sits on") {
  const OtherMachine other;
  const numa::Nodes found = numa::nodes();
  if (found.source != "hwloc") {
    WARN("skipped: this build has no hwloc");
    return;
  }
  REQUIRE(found.nodes.size() == 2);
  CHECK(found.nodes[1].bytes == 1u << 30);
  CHECK(numa::nearest_node("0000:00:00.0").node == 0);
  CHECK(numa::nearest_node("0000:01:00.0").node == 1);
  const numa::Near none = numa::nearest_node("00aa:bb:00.0");
  CHECK(none.node == -1);
  CHECK_THAT(none.reason, Contains("hwloc does not show the device 00aa:bb:00.0"));

  const Pages pages;
  CHECK_THAT(numa::bind(pages.at(), Pages::kBytes, 1), Contains("another machine"));
  CHECK_THAT(numa::bind(pages.at(), Pages::kBytes, 2), Contains("there is no NUMA node 2"));
}

TEST_CASE("A node that is not there is refused by the system, with its words") {
  const OtherMachine other;
  if (numa::nodes().source != "hwloc" || numa::nodes().nodes.size() != 2) return;
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
  const Pages pages;
  ::unsetenv("HWLOC_XMLFILE");
  const bool two_here = numa::nodes().nodes.size() > 1;
  ::setenv("HWLOC_XMLFILE", TRANSLOAD_SOURCE_DIR "/tests/offload/two_nodes.xml", 1);
  const std::string reason = numa::bind(pages.at(), Pages::kBytes, 1);
  if (!two_here) CHECK_THAT(reason, Contains("binding 1.0 MiB to NUMA node 1 was refused: "));
}
