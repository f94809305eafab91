// The timeline: what joins, what is kept, what is lost.
#include "base/timeline.h"

#include <catch2/catch.hpp>

using namespace transload;

namespace {

Span task(std::uint64_t begin, std::uint64_t end, const char* name, std::int32_t index = 0) {
  return {.begin_ns = begin, .end_ns = end, .name = name, .index = index};
}

}  // namespace

TEST_CASE("Tasks of one operation that follow each other at once are one span") {
  Timeline timeline({.spans = 10, .waits = 1, .samples = 1});
  timeline.begin();
  const char* forward = "forward";
  timeline.add(task(100, 200, forward));
  timeline.add(task(200, 300, forward));       // at once
  timeline.add(task(2300, 2400, forward));     // 2 µs later: still
  timeline.add(task(4401, 4500, forward));     // longer
  timeline.add(task(4500, 4600, forward, 1));  // another layer
  timeline.add(Span{.begin_ns = 4600, .end_ns = 4700, .bytes = 5, .block = BlockId(1), .lane = Lane::nvme_read});
  timeline.add(Span{.begin_ns = 4600, .end_ns = 4700, .bytes = 5, .block = BlockId(1), .lane = Lane::nvme_read});
  timeline.add(task(4600, 4700, forward, 1));  // a transfer in between is on another lane
  timeline.end();
  REQUIRE(timeline.spans().size() == 5);
  CHECK(timeline.spans()[0].end_ns == 2400);
  CHECK(timeline.spans()[0].tasks == 3);
  CHECK(timeline.spans()[1].begin_ns == 4401);
  CHECK(timeline.spans()[2].tasks == 2);
  CHECK(timeline.spans()[3].lane == Lane::nvme_read);
  CHECK(timeline.lost() == 0);
}

TEST_CASE("What does not fit is counted; nothing is kept outside of a step; a step begins empty") {
  Timeline timeline({.spans = 2, .waits = 1, .samples = 1});
  timeline.add(task(1, 2, "before"));
  CHECK(timeline.spans().empty());
  timeline.begin();
  CHECK(timeline.on());
  const Span* place = timeline.spans().data();
  for (std::int32_t i = 0; i < 5; ++i) timeline.add(task(1, 2, "work", i));
  for (int i = 0; i < 3; ++i) timeline.add(Wait{});
  for (int i = 0; i < 2; ++i) timeline.add(MemorySample{});
  timeline.end();
  timeline.add(task(1, 2, "after"));
  CHECK(!timeline.on());
  CHECK(timeline.spans().size() == 2);
  CHECK(timeline.spans().data() == place);  // nothing was allocated
  CHECK(timeline.waits().size() == 1);
  CHECK(timeline.samples().size() == 1);
  CHECK(timeline.lost() == 3 + 2 + 1);
  timeline.begin();
  CHECK(timeline.spans().empty());
  CHECK(timeline.lost() == 0);
}

TEST_CASE("Planes are uses of memory") {
  CHECK(use_of("weight") == MemoryKind::weight);
  CHECK(use_of("kept") == MemoryKind::kept);
  CHECK(use_of("gathered") == MemoryKind::gathered);
  CHECK(use_of("local") == MemoryKind::local);
  CHECK(use_of("low") == MemoryKind::other);
  CHECK(use_of("workspace") == MemoryKind::other);  // a block is never workspace
}
