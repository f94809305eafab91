// Plans of passes that come once between steady steps.
#include <catch2/catch.hpp>

#include <array>

#include "plan/joined.h"
#include "plan/planner.h"
#include "plan/replay.h"
#include "plan/traces.h"

namespace transload {
namespace {

using test::random_step;
using test::TracedStep;
using test::training_step;

constexpr int kWrite = static_cast<int>(Link::nvme_write);

PlanInput input_of(const Trace& trace, const std::vector<BlockSpec>& blocks, const Budgets& budgets) {
  PlanInput input;
  input.trace = &trace;
  input.blocks = &blocks;
  input.budgets = budgets;
  return input;
}

/// What the step uses: other blocks have no copies to hold.
void same_copies(const TracedStep& step, const Plan& between, const Plan& steady) {
  for (const int tier : {0, 1})
    for (const Access& a : step.trace.accesses) {
      CAPTURE(tier, a.block.value);
      if (!steady.held[tier].empty()) CHECK(between.held[tier][a.block.value] == steady.held[tier][a.block.value]);
    }
}

/// Two steps as one between others: as valid a plan as any, for it may follow itself; and it begins and ends as they
/// do.
void two_steps_between(const TracedStep& step, const Budgets& budgets) {
  const Plan steady = make_plan(input_of(step.trace, step.blocks, budgets));
  const std::array<const Trace*, 2> passes = {&step.trace, &step.trace};
  const Trace both = join(passes);
  const PlanInput input = input_of(both, step.blocks, budgets);
  const Plan between = plan_between(input, steady);
  CHECK(between.once);
  test::Replay(input, between).run(4);
  if (budgets.device_bytes == 0) same_copies(step, between, steady);
  const auto half = static_cast<std::uint32_t>(step.trace.accesses.size());
  const LinkBytes first = bytes_for(between, step.blocks, 0, half),
                  second = bytes_for(between, step.blocks, half, 2 * half);
  for (const Link link : {Link::nvme_read, Link::host_to_device}) {
    const auto i = static_cast<std::size_t>(link);
    CHECK(first.bytes[i] + second.bytes[i] == between.bytes[i]);
  }
}

}  // namespace

TEST_CASE("passes between steady steps begin and end with the copies that those hold") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const bool device = seed % 2 == 1;
    CAPTURE(seed);
    const TracedStep step = random_step(seed, 2 + seed % 19, 5 + seed % 87, device);
    const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, device);
    const std::uint64_t on_device = device ? std::max<std::uint64_t>(least.device_bytes, 4 * KiB) : 0;
    for (const std::uint64_t factor : {1, 2, 4})
      two_steps_between(step, {on_device, factor * least.host_bytes, 1 * GiB, 4 * KiB});
  }
}

TEST_CASE("two training steps between others move what two others do") {
  const TracedStep step = training_step(24, 64 * 1024, 96 * KiB, 300'000, Tier::host);
  const std::array<const Trace*, 2> passes = {&step.trace, &step.trace};
  const Trace both = join(passes);
  for (const int percent : {25, 40, 60, 90}) {
    CAPTURE(percent);
    const Budgets budgets = {0, test::all_bytes(step.blocks) * percent / 100, 100 * GiB, 16 * KiB};
    const Plan steady = make_plan(input_of(step.trace, step.blocks, budgets));
    const Plan between = plan_between(input_of(both, step.blocks, budgets), steady);
    for (int link = 0; link < kLinks; ++link) {
      CHECK(between.bytes[link] == 2 * steady.bytes[link]);
      CHECK(between.lower_bound[link] == 0);
    }
  }
}

TEST_CASE("a commit between steps writes every durable version once") {
  const TracedStep step = training_step(8, 4096, 9000, 10'000, Tier::host);
  std::uint64_t durable = 0;
  for (const BlockSpec& b : step.blocks) durable += b.durable ? b.bytes : 0;
  const std::array<const Trace*, 2> passes = {&step.trace, &step.trace};
  Trace both = join(passes);
  both.commit_tick = static_cast<std::uint32_t>(step.trace.accesses.size());
  const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, false);
  for (const std::uint64_t factor : {1, 2, 1000}) {
    CAPTURE(factor);
    const Budgets budgets = {0, factor * least.host_bytes, 1 * GiB, 4 * KiB};
    const Plan steady = make_plan(input_of(step.trace, step.blocks, budgets));
    const PlanInput input = input_of(both, step.blocks, budgets);
    const Plan between = plan_between(input, steady);
    test::Replay(input, between).run(4);
    CHECK(bytes_for(between, step.blocks, 0, both.commit_tick).bytes[kWrite] >= durable);
    if (factor == 1000) CHECK(between.bytes[kWrite] == durable);  // the versions of the second step may stay
  }
}

}  // namespace transload
