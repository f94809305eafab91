#include "plan/memory_peaks.h"

#include <catch2/catch.hpp>

#include "traces.h"

using namespace transload;
using namespace transload::test;

namespace {

constexpr std::uint64_t kFrame = 1 * KiB;

std::uint64_t of(const TierPeak& peak, MemoryKind use) { return peak.most[static_cast<std::size_t>(use)]; }

}  // namespace

TEST_CASE("memory peaks: with room for everything each use is all of it") {
  // 300 elements: planes of 600 and 1200 bytes, so that each has padding in its last frame.
  const TracedStep step = StepWriter(5, 300, 700, Tier::host).write(1500);
  const PlanInput input{
      .trace = &step.trace,
      .blocks = &step.blocks,
      .budgets = {.device_bytes = 0, .host_bytes = 1 * MiB, .nvme_bytes = 1 * MiB, .frame_bytes = kFrame},
      .rates = {},
      .in_flight_bytes = {0, 0}};
  const Plan plan = make_plan(input);
  const TierPeak peak = memory_peak(input, plan, Tier::host);
  CHECK(of(peak, MemoryKind::weight) == 5 * 600);
  CHECK(of(peak, MemoryKind::residue) == 5 * 600);
  CHECK(of(peak, MemoryKind::moment1) == 5 * 1200);
  CHECK(of(peak, MemoryKind::moment2) == 5 * 1200);
  CHECK(of(peak, MemoryKind::gradient) == 5 * 600);
  CHECK(of(peak, MemoryKind::kept) == 5 * 700);
  CHECK(of(peak, MemoryKind::workspace) == 3 * kFrame);
  CHECK(peak.used == plan.peak_bytes[1]);
  CHECK(memory_peak(input, plan, Tier::device).used == 0);
}

TEST_CASE("memory peaks: never more than the budget, nor than the plan counts") {
  for (const std::uint64_t host : {24, 32, 48, 64}) {
    const TracedStep step = StepWriter(9, 512, 1024, Tier::host).write(2 * kFrame);
    const PlanInput input{
        .trace = &step.trace,
        .blocks = &step.blocks,
        .budgets = {.device_bytes = 0, .host_bytes = host * KiB, .nvme_bytes = 1 * MiB, .frame_bytes = kFrame},
        .rates = {},
        .in_flight_bytes = {2 * kFrame, 2 * kFrame}};
    const Plan plan = make_plan(input);
    const TierPeak peak = memory_peak(input, plan, Tier::host);
    CAPTURE(host, peak.used, plan.peak_bytes[1]);
    CHECK(peak.used <= host * KiB);
    CHECK(peak.used <= plan.peak_bytes[1]);
    CHECK(peak.used * 10 >= plan.peak_bytes[1] * 9);
    CHECK(of(peak, MemoryKind::workspace) == 4 * kFrame);
  }
}

TEST_CASE("memory peaks: a rank's gradient may be there until the next one is summed") {
  std::vector<BlockSpec> blocks;
  Trace trace;
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    blocks.push_back({.name = "local", .bytes = kFrame, .durable = false, .plane = "local"});
    const std::uint32_t tick = 2 * chunk;
    trace.accesses.push_back(
        {.block = BlockId(chunk), .tier = Tier::host, .kind = AccessKind::write, .release_tick = tick + 1});
    trace.accesses.push_back(
        {.block = BlockId(chunk), .tier = Tier::host, .kind = AccessKind::consume, .release_tick = tick + 2});
  }
  const PlanInput input{
      .trace = &trace,
      .blocks = &blocks,
      .budgets = {.device_bytes = 0, .host_bytes = 1 * MiB, .nvme_bytes = 1 * MiB, .frame_bytes = kFrame},
      .rates = {},
      .in_flight_bytes = {0, 0}};
  CHECK(memory_peak(input, make_plan(input), Tier::host).used == 2 * kFrame);
  for (BlockSpec& block : blocks) block.plane = "kept";
  CHECK(memory_peak(input, make_plan(input), Tier::host).used == kFrame);
}

TEST_CASE("memory peaks: of an empty trace nothing") {
  const Trace trace;
  const std::vector<BlockSpec> blocks;
  const PlanInput input{.trace = &trace, .blocks = &blocks, .budgets = {}, .rates = {}, .in_flight_bytes = {0, 0}};
  CHECK(memory_peak(input, {}, Tier::host).used == 0);
}
