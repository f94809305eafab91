#include <catch2/catch.hpp>
#include <cstdio>

#include "plan/bounds.h"
#include "plan/link_bounds.h"
#include "plan/planner.h"
#include "plan/replay.h"
#include "plan/traces.h"

namespace transload {
namespace {

constexpr std::uint64_t kElements = 64 * 1024;
constexpr std::uint64_t kFrame = 16 * KiB;
constexpr int kRead = static_cast<int>(Link::nvme_read), kWrite = static_cast<int>(Link::nvme_write);

/// The bound for the budget less the room for transfers.
std::uint64_t bound_beside_transfers(PlanInput input) {
  input.budgets.host_bytes -= input.in_flight_bytes[1];
  return least_fetch_bytes(memory_problem(input));
}

/// Every fetch issued as early as its lead allows must find its block gone and room free, all the way round.
void check_leads(const PlanInput& input, const Plan& plan, const std::vector<std::uint64_t>& used_without_leads) {
  const std::uint64_t n = input.trace->accesses.size();
  std::vector<std::uint64_t> used = used_without_leads;
  for (const Plan::Fetch& f : plan.fetches[1]) {
    REQUIRE(f.lead < n);
    const std::uint64_t bytes = round_up((*input.blocks)[f.block.value].bytes, input.budgets.frame_bytes);
    for (std::uint64_t ahead = 1; ahead <= f.lead; ++ahead) {
      const std::uint64_t t = (n + f.need_tick - ahead) % n;
      REQUIRE(input.trace->accesses[t].block != f.block);
      used[t] += bytes;
    }
  }
  for (std::uint64_t t = 0; t < n; ++t) REQUIRE(used[t] <= input.budgets.host_bytes);
}

/// Bytes that the plan's own residency takes at each tick: from a block's fetch or making to its drop, consume or end.
std::vector<std::uint64_t> residency(const PlanInput& input, const Plan& plan) {
  const std::uint64_t n = input.trace->accesses.size();
  std::vector<std::uint64_t> used(n, 0);
  std::vector<char> dropped(n, 0);
  for (const Plan::Drop& d : plan.drops[1]) dropped[d.after_tick] = 1;
  std::vector<std::uint64_t> next(input.blocks->size(), UINT64_MAX);
  for (std::uint64_t t = 2 * n; t-- > 0;) {
    const Access& a = input.trace->accesses[t % n];
    const std::uint64_t after = next[a.block.value];
    next[a.block.value] = t;
    if (t >= n) continue;
    const bool leaves = dropped[t] != 0 || a.kind == AccessKind::consume;
    const std::uint64_t end = leaves ? a.release_tick : std::max<std::uint64_t>(after, a.release_tick);
    for (std::uint64_t u = t; u < end; ++u)
      used[u % n] += round_up((*input.blocks)[a.block.value].bytes, input.budgets.frame_bytes);
  }
  std::uint64_t workspace = 0;
  std::size_t w = 0;
  for (std::uint64_t t = 0; t < n; ++t) {
    for (; w < input.trace->workspace.size() && input.trace->workspace[w].tick <= t; ++w)
      workspace = input.trace->workspace[w].bytes;
    used[t] += round_up(workspace, input.budgets.frame_bytes);
  }
  return used;
}

}  // namespace

TEST_CASE("steady state: fetched bytes are at most 1.10 of the bound at four budgets") {
  const auto step = test::training_step(120, kElements, 96 * KiB, 300'000, Tier::host);
  const std::uint64_t all = test::all_bytes(step.blocks);
  std::printf("budget   bound MB   plan read   ratio  written   LRU read  written\n");
  for (const int percent : {25, 40, 60, 90}) {
    PlanInput input;
    input.trace = &step.trace;
    input.blocks = &step.blocks;
    input.budgets = {0, all * percent / 100, 100 * GiB, kFrame};
    input.in_flight_bytes[0] = input.in_flight_bytes[1] = 4 * kElements * 4;
    const Plan plan = make_plan(input);
    const LinkBytes lru = simulate_lru(input);
    const std::uint64_t bound = bound_beside_transfers(input);
    const double ratio = static_cast<double>(plan.bytes[kRead]) / static_cast<double>(bound);
    std::printf("%4d %%   %8.1f   %9.1f   %5.3f  %7.1f   %8.1f  %7.1f\n", percent, static_cast<double>(bound) / 1e6,
                static_cast<double>(plan.bytes[kRead]) / 1e6, ratio, static_cast<double>(plan.bytes[kWrite]) / 1e6,
                static_cast<double>(lru.bytes[kRead]) / 1e6, static_cast<double>(lru.bytes[kWrite]) / 1e6);
    CHECK(ratio <= 1.10);
    CHECK(bound >= plan.lower_bound[kRead]);
    CHECK(plan.bytes[kRead] + plan.bytes[kWrite] <= lru.bytes[kRead] + lru.bytes[kWrite]);
    test::Replay(input, plan).run(3);
    check_leads(input, plan, residency(input, plan));
  }
}

TEST_CASE("steady state in three tiers keeps its budgets and stays near the bound on the device's link") {
  const auto step = test::training_step(60, kElements, 100'000, 300'000, Tier::device);
  const std::uint64_t all = test::all_bytes(step.blocks);
  for (const int percent : {25, 60}) {
    PlanInput input;
    input.trace = &step.trace;
    input.blocks = &step.blocks;
    input.budgets = {all / 8, all * percent / 100, 100 * GiB, kFrame};
    input.in_flight_bytes[0] = input.in_flight_bytes[1] = kElements * 4;
    const Plan plan = make_plan(input);
    test::Replay(input, plan).run(3);
    const int up = static_cast<int>(Link::host_to_device);
    CHECK(static_cast<double>(plan.bytes[up]) <= 1.15 * static_cast<double>(plan.lower_bound[up]));
  }
}

TEST_CASE("LRU moves everything on a same-direction sweep and nothing when all fits") {
  const auto step = test::training_step(40, kElements, 100'000, 0, Tier::host);
  PlanInput input;
  input.trace = &step.trace;
  input.blocks = &step.blocks;
  input.budgets = {0, 2 * test::all_bytes(step.blocks), 100 * GiB, kFrame};
  for (const std::uint64_t bytes : simulate_lru(input).bytes) REQUIRE(bytes == 0);
  input.budgets.host_bytes = test::all_bytes(step.blocks) / 4;
  // Residue and both moments (10 bytes an element) come in every step, whatever was kept.
  REQUIRE(simulate_lru(input).bytes[kRead] >= 40 * kElements * 10);
}

TEST_CASE("predicted time is no less than its bound and says what binds") {
  const auto step = test::training_step(60, kElements, 100'000, 0, Tier::host);
  PlanInput input;
  input.trace = &step.trace;
  input.blocks = &step.blocks;
  input.budgets = {0, test::all_bytes(step.blocks) / 4, 100 * GiB, kFrame};
  input.in_flight_bytes[0] = input.in_flight_bytes[1] = 4 * kElements * 4;
  input.rates.nvme_read = input.rates.nvme_write = 1e9;
  input.rates.nvme_duplex = 1.5e9;
  const Plan plan = make_plan(input);
  const double duplex_s = static_cast<double>(plan.bytes[kRead] + plan.bytes[kWrite]) / 1.5e9;
  SECTION("computation binds") {
    const StepTime time = predict_step(input, plan, 10, 20, 5);
    CHECK(time.binds == "computation");
    CHECK(time.plain_bound_s == Approx(35));
    CHECK(time.step_s >= time.lower_bound_s * (1 - 1e-9));
    CHECK(time.step_s <= 36);
  }
  SECTION("collectives by the processor that computes add up") {
    const StepTime time = predict_step(input, plan, 10, 20, 5, {.first_s = 2, .backward_s = 3});
    CHECK(time.collectives_s == Approx(5));
    CHECK(time.binds == "computation");
    CHECK(time.plain_bound_s == Approx(40));
    CHECK(time.step_s >= 40 * (1 - 1e-9));
    CHECK(time.step_s <= 41);
  }
  SECTION("collectives beside computation cost what they take longer") {
    const Collectives short_ones{.first_s = 14, .backward_s = 19, .beside = true};
    const Collectives long_ones{.first_s = 14, .backward_s = 40, .beside = true};
    CHECK(predict_step(input, plan, 10, 20, 5, short_ones).step_s ==
          Approx(predict_step(input, plan, 10, 20, 5).step_s));
    const StepTime time = predict_step(input, plan, 10, 20, 5, long_ones);
    CHECK(time.binds == "collectives");
    CHECK(time.step_s >= 55 * (1 - 1e-9));
    CHECK(time.step_s <= 56);
  }
  SECTION("the disk binds") {
    const StepTime time = predict_step(input, plan, 1e-3, 2e-3, 1e-3);
    CHECK(time.binds == "nvme_duplex");
    CHECK(time.lower_bound_s >= time.plain_bound_s);
    CHECK(time.step_s >= time.lower_bound_s * (1 - 1e-9));
    CHECK(time.step_s <= 1.6 * duplex_s);
  }
  SECTION("nothing is known of the links") {
    input.rates = {};
    const StepTime time = predict_step(input, plan, 1, 2, 0.5);
    CHECK(time.step_s == Approx(3.5));
    CHECK(time.lower_bound_s == Approx(3.5));
  }
}

}  // namespace transload
