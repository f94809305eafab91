#include "engine/rehearsal.h"

#include <catch2/catch.hpp>

#include "plan/traces.h"

namespace transload {
namespace {

using test::random_step;
using test::TracedStep;
using test::training_step;

PlanInput input_of(const TracedStep& step, const Budgets& budgets) {
  PlanInput input;
  input.trace = &step.trace;
  input.blocks = &step.blocks;
  input.budgets = budgets;
  return input;
}

/// The third step is steady: the first two find what the plan counts on.
void steady_steps_move_what_is_planned(const TracedStep& step, const Budgets& budgets, int links = kLinks) {
  const Plan plan = make_plan(input_of(step, budgets));
  Rehearsal rehearsal(step.blocks, budgets);
  rehearsal.follow(step.trace, plan);
  for (int i = 0; i < 2; ++i) rehearsal.step();
  for (int i = 0; i < 3; ++i) {
    const LinkBytes moved = rehearsal.step();
    for (int link = 0; link < links; ++link) {
      CAPTURE(name_of(static_cast<Link>(link)), i);
      CHECK(moved.bytes[link] == plan.bytes[link]);
    }
  }
}

}  // namespace

TEST_CASE("a rehearsed steady step moves what its plan says") {
  for (const Tier tier : {Tier::host, Tier::device}) {
    const TracedStep step = training_step(8, 4096, 9000, 10'000, tier);
    const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, tier == Tier::device);
    for (const double factor : {1.0, 1.3, 2.0, 4.0}) {
      CAPTURE(name_of(tier), factor);
      const auto times = [&](std::uint64_t bytes) {
        return static_cast<std::uint64_t>(factor * static_cast<double>(bytes));
      };
      steady_steps_move_what_is_planned(step, {times(least.device_bytes), times(least.host_bytes), 1 * GiB, 4 * KiB});
    }
  }
}

/// Between device and host an engine may move more where accesses follow no order of training: what the host asks for
/// next leaves the device at once.
TEST_CASE("rehearsed random steps read from NVMe and write there what their plans say") {
  constexpr int kNvmeLinks = 2;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const bool device = seed % 2 == 1;
    CAPTURE(seed);
    const TracedStep step = random_step(seed, 2 + seed % 19, 5 + seed % 87, device);
    const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, device);
    steady_steps_move_what_is_planned(
        step,
        {device ? std::max<std::uint64_t>(least.device_bytes, 4 * KiB) : 0, 2 * least.host_bytes, 1 * GiB, 4 * KiB},
        kNvmeLinks);
  }
}

TEST_CASE("a commit writes every durable version that the store lacks, once") {
  const TracedStep step = training_step(8, 4096, 9000, 10'000, Tier::host);
  std::uint64_t durable = 0;
  for (const BlockSpec& b : step.blocks) durable += b.durable ? b.bytes : 0;
  const Budgets roomy = {0, 1 * GiB, 1 * GiB, 4 * KiB};
  const Plan plan = make_plan(input_of(step, roomy));
  Rehearsal rehearsal(step.blocks, roomy);
  rehearsal.follow(step.trace, plan);
  CHECK(rehearsal.commit().bytes[static_cast<int>(Link::nvme_write)] == 0);
  rehearsal.step();
  CHECK(rehearsal.commit().bytes[static_cast<int>(Link::nvme_write)] == durable);  // a step updates all of them
  CHECK(rehearsal.commit().bytes[static_cast<int>(Link::nvme_write)] == 0);
}

}  // namespace transload
