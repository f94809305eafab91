// In the steady state a run moves over each link no more than its plan says: nothing that the plan keeps leaves, and
// nothing that it drops stays and takes room, however late streams and drives are. Where they are late a copy may be
// used again before it has left: then it moves less.
#include <array>
#include <fstream>

#include "train/commit_cycle.h"
#include "train/model_config.h"
#include "train/planning.h"
#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;

namespace {

constexpr std::uint64_t kSteps = 24, kSettled = 4;  // fresh, the way to the steady state, and what it fetched ahead

struct Moved {
  std::uint64_t steps = 0;
  std::array<std::int64_t, kLinks> bytes{};
};

/// In the steps after the first kSettled, from the record.
Moved steady(const std::string& run) {
  std::ifstream record(run + "/record.jsonl");
  Moved moved;
  for (std::string line; std::getline(record, line);) {
    const Json event = Json::parse(line);
    if (event["event"] != "step" || event["step"].get<std::uint64_t>() <= kSettled) continue;
    ++moved.steps;
    for (int i = 0; i < kLinks; ++i)
      moved.bytes[static_cast<std::size_t>(i)] +=
          event["links"][name_of(static_cast<Link>(i))]["bytes"].get<std::int64_t>();
  }
  return moved;
}

void follows(RunCase c) {
  CAPTURE(c.name());
  c.steps = kSteps;
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  const Json summary = train(o);
  const Moved moved = steady(o.run);
  REQUIRE(moved.steps == kSteps - kSettled);
  const auto steps = static_cast<std::int64_t>(moved.steps);
  std::int64_t least = INT64_MAX;
  for (int i = 0; i < kLinks; ++i) {
    CAPTURE(name_of(static_cast<Link>(i)));
    const auto planned = summary["links"][name_of(static_cast<Link>(i))]["planned_step_bytes"].get<std::int64_t>();
    // At both ends transfers may belong to the step beside: as many as there is room for ahead.
    const std::int64_t ahead = summary["tiers"]["host"]["budget"].get<std::int64_t>() / 4;
    const std::int64_t more = moved.bytes[static_cast<std::size_t>(i)] - steps * planned;
    CHECK(more <= std::min(ahead, steps * planned / 25));
    const auto bound = summary["links"][name_of(static_cast<Link>(i))]["least_bytes"].get<std::int64_t>();
    CHECK(moved.bytes[static_cast<std::size_t>(i)] >= steps * bound - ahead);
    if (planned > 0) least = std::min(least, planned);
  }
  REQUIRE(least < INT64_MAX);
}

/// By steps and commits after the first commit, which ends the way into the steady state.
struct Cycles {
  std::uint64_t count = 0;
  std::array<std::int64_t, kLinks> bytes{};
};

Cycles commit_cycles(const std::string& run, std::uint64_t every) {
  std::ifstream record(run + "/record.jsonl");
  Cycles cycles;
  const auto add = [&](const Json& links, bool steps) {
    for (int i = 0; i < kLinks; ++i) {
      const Json& link = links[name_of(static_cast<Link>(i))];
      cycles.bytes[static_cast<std::size_t>(i)] += (steps ? link["bytes"] : link).get<std::int64_t>();
    }
  };
  for (std::string line; std::getline(record, line);) {
    const Json event = Json::parse(line);
    const auto step = event.value("step", std::uint64_t{0});
    if (event["event"] == "commit" && step > every) {
      ++cycles.count;
      add(event["link_bytes"], false);
    }
    if (event["event"] == "step" && step > every) add(event["links"], true);
  }
  return cycles;
}

void commits_as_planned(const RunCase& c) {
  CAPTURE(c.name());
  constexpr std::uint64_t kCycle = 8, kCycles = 3;
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  o.commit_every = {.steps = kCycle};
  o.steps = kCycle * (kCycles + 1);
  TrainOptions planned = o;
  const Prepared prepared = prepare(planned, read_model_config(o.model + "/config.json"), o.chunk_size, nullptr);
  REQUIRE(prepared.cycle.planned());
  const Json summary = train(o);
  const Cycles cycles = commit_cycles(o.run, kCycle);
  REQUIRE(cycles.count == kCycles);
  for (int i = 0; i < kLinks; ++i) {
    CAPTURE(name_of(static_cast<Link>(i)));
    const std::uint64_t a_cycle = prepared.cycle.plan.bytes[i] + (kCycle - 2) * prepared.plan.plan.bytes[i];
    const auto said = static_cast<double>(kCycles * a_cycle);
    const auto came = static_cast<double>(cycles.bytes[static_cast<std::size_t>(i)]);
    CHECK(came <= 1.005 * said);
    CHECK(came >= 0.9 * said);  // copies that are late are used again before they have left
  }
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (prepared.plan.budgets.of(tier) == 0) continue;
    CHECK(summary["tiers"][name_of(tier)]["peak"].get<std::uint64_t>() <= prepared.used_bytes[static_cast<int>(tier)]);
  }
}

}  // namespace

TEST_CASE("A commit and the two steps after it move what is planned for them") {
  for (const double budget : {1.3, 2.0, 0.0}) commits_as_planned({.budget = budget});
  for (const double budget : {1.3, 2.0}) commits_as_planned({.budget = budget, .device = DeviceKind::emulated});
}

TEST_CASE("Whoever gives a run just what it takes moves no more") {
  TempFolder folder;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated})
    for (const double budget : {1.5, 3.0, 0.0}) {
      TrainOptions o = options_of({.budget = budget, .device = device}, folder.path("run"));
      set_budget(o, budget);
      CAPTURE(name_of(device), budget);
      const RunPlan first = Trainer(o, {}).plan();
      CHECK(first.budgets.host_bytes <= o.host_memory);
      o.host_memory = first.budgets.host_bytes;
      o.device_memory = first.budgets.device_bytes;
      const RunPlan second = Trainer(o, {}).plan();
      CHECK(second.budgets.host_bytes <= first.budgets.host_bytes);  // room for transfers is a part of what is left
      CHECK(second.budgets.device_bytes <= first.budgets.device_bytes);
      for (int link = 0; link < kLinks; ++link) CHECK(second.plan.bytes[link] <= first.plan.bytes[link]);
    }
}

TEST_CASE("Steady steps move no more than the plan says, with little memory and with much") {
  for (const double budget : {1.0, 1.3, 1.6, 2.0}) follows({.budget = budget});
}

TEST_CASE("Steady steps move no more than the plan says, through a device tier") {
  // At the least budget a transfer that is late has no room beside the pins: the next block is made room for elsewhere.
  for (const double budget : {1.3, 2.0, 3.0}) follows({.budget = budget, .device = DeviceKind::emulated});
}
