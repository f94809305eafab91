#include "plan/planner.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "plan/bounds.h"
#include "plan/replay.h"
#include "plan/traces.h"

namespace transload {
namespace {

using test::random_step;
using test::TracedStep;
using test::training_step;

PlanInput input_for(const TracedStep& step, std::uint64_t device, std::uint64_t host, std::uint64_t nvme) {
  PlanInput input;
  input.trace = &step.trace;
  input.blocks = &step.blocks;
  input.budgets = {device, host, nvme, 4 * KiB};
  return input;
}

void replay(const PlanInput& input) {
  const Plan plan = make_plan(input);
  REQUIRE(plan.peak_bytes[0] <= input.budgets.device_bytes);
  REQUIRE(plan.peak_bytes[1] <= input.budgets.host_bytes);
  test::Replay(input, plan).run(4);
}

}  // namespace

TEST_CASE("random steps in two tiers replay within budget, from the least budget up") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    const TracedStep step = random_step(seed, 2 + seed % 19, 5 + seed % 87, false);
    const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, false);
    for (const double factor : {1.0, 1.3, 3.0}) {
      PlanInput input =
          input_for(step, 0, static_cast<std::uint64_t>(factor * static_cast<double>(least.host_bytes)), 1 * GiB);
      for (const std::uint64_t in_flight : {0u, 50'000u, 100'000'000u}) {
        input.in_flight_bytes[0] = input.in_flight_bytes[1] = in_flight;
        replay(input);
      }
    }
  }
}

TEST_CASE("random steps in three tiers replay within budget, from the least budget up") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    const TracedStep step = random_step(1000 + seed, 2 + seed % 17, 5 + seed % 91, true);
    const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, true);
    for (const double factor : {1.0, 1.5, 4.0}) {
      const auto host = static_cast<std::uint64_t>(factor * static_cast<double>(least.host_bytes));
      PlanInput input = input_for(step, std::max<std::uint64_t>(least.device_bytes, 4 * KiB), host, 1 * GiB);
      replay(input);
      input.budgets.device_bytes *= 2;
      input.in_flight_bytes[0] = input.in_flight_bytes[1] = 60'000;
      replay(input);
    }
  }
}

TEST_CASE("without a store everything stays, or the plan is refused with the numbers") {
  const TracedStep step = training_step(6, 4096, 9000, 10'000, Tier::host);
  const std::uint64_t all = test::all_bytes(step.blocks);
  replay(input_for(step, 0, 2 * all, 0));
  const Plan plan = make_plan(input_for(step, 0, 2 * all, 0));
  for (const std::uint64_t bytes : plan.bytes) REQUIRE(bytes == 0);
  try {
    make_plan(input_for(step, 0, all / 2, 0));
    FAIL("accepted");
  } catch (const BudgetError& e) {
    REQUIRE(e.given_bytes == all / 2);
    REQUIRE(e.needed_bytes > all / 2);
    REQUIRE_NOTHROW(make_plan(input_for(step, 0, e.needed_bytes, 0)));
    REQUIRE_THROWS_AS(make_plan(input_for(step, 0, e.needed_bytes - 4096, 0)), BudgetError);
  }
  replay(input_for(training_step(6, 4096, 9000, 10'000, Tier::device), all / 2, 2 * all, 0));
}

TEST_CASE("a budget below what is pinned at once is refused, naming the access") {
  const TracedStep step = training_step(6, 4096, 9000, 10'000, Tier::host);
  const LeastBudget least = least_budget(step.trace, step.blocks, 4 * KiB, false);
  // Update: 8 + 8 + 16 + 16 + 8 KiB; workspace of 10,000 bytes; two transfers of the largest block.
  REQUIRE(least.host_bytes == (56 + 12 + 2 * 16) * KiB);
  REQUIRE_NOTHROW(make_plan(input_for(step, 0, 68 * KiB, GiB)));
  try {
    make_plan(input_for(step, 0, 64 * KiB, GiB));
    FAIL("accepted");
  } catch (const BudgetError& e) {
    REQUIRE(e.needed_bytes == 68 * KiB);
    REQUIRE(std::string(e.what()).find("chunk 0 gradient") != std::string::npos);
  }
}

TEST_CASE("plans are deterministic and nothing moves when all fits") {
  const TracedStep step = training_step(20, 4096, 9000, 10'000, Tier::host);
  const Plan plan = make_plan(input_for(step, 0, 100 * MiB, GiB));
  for (const std::uint64_t bytes : plan.bytes) REQUIRE(bytes == 0);
  REQUIRE(plan.fetches[1].empty());
  const auto input = input_for(step, 0, 600 * KiB, GiB);
  const Plan a = make_plan(input), b = make_plan(input);
  REQUIRE(a.fetches[1].size() == b.fetches[1].size());
  for (std::size_t i = 0; i < a.fetches[1].size(); ++i) {
    REQUIRE(a.fetches[1][i].block == b.fetches[1][i].block);
    REQUIRE(a.fetches[1][i].need_tick == b.fetches[1][i].need_tick);
    REQUIRE(a.fetches[1][i].lead == b.fetches[1][i].lead);
  }
}

TEST_CASE("gradients made on the device leave it once and kept inputs stay where there is room") {
  const TracedStep step = training_step(30, 4096, 9000, 10'000, Tier::device);
  PlanInput input = input_for(step, 2 * MiB, 100 * MiB, GiB);
  const Plan plan = make_plan(input);
  REQUIRE(plan.bytes[static_cast<int>(Link::device_to_host)] == 30 * 4096 * 2);
  REQUIRE(plan.lower_bound[static_cast<int>(Link::device_to_host)] == 30 * 4096 * 2);
  REQUIRE(plan.bytes[static_cast<int>(Link::nvme_read)] == 0);
  replay(input);
}

}  // namespace transload
