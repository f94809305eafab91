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

std::vector<std::uint64_t> written_by_commits(const std::string& run) {
  std::ifstream record(run + "/record.jsonl");
  std::vector<std::uint64_t> written;
  for (std::string line; std::getline(record, line);) {
    const Json event = Json::parse(line);
    if (event["event"] == "commit") written.push_back(event["written_bytes"].get<std::uint64_t>());
  }
  return written;
}

void commits_as_rehearsed(const RunCase& c) {
  CAPTURE(c.name());
  constexpr std::uint64_t kCycle = 8;
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  o.commit_every = {.steps = kCycle};
  TrainOptions planned = o;
  const Prepared prepared = prepare(planned, read_model_config(o.model + "/config.json"), o.chunk_size, nullptr);
  const CommitCycle cycle = plan_commit(prepared, prepared.plan.plan, {});
  train(o);
  const std::vector<std::uint64_t> written = written_by_commits(o.run);
  REQUIRE(written.size() == c.steps / kCycle);
  for (const std::uint64_t bytes : written) {
    // Every durable byte; gradients may have to leave while updates and writes are on their way.
    const auto rehearsed = static_cast<double>(cycle.commit.bytes[static_cast<int>(Link::nvme_write)]);
    CHECK(static_cast<double>(bytes) >= rehearsed);
    CHECK(static_cast<double>(bytes) <= 1.2 * rehearsed);
  }
}

}  // namespace

TEST_CASE("A commit writes what was rehearsed") {
  for (const double budget : {1.3, 2.0, 0.0}) commits_as_rehearsed({.budget = budget, .steps = 24});
  commits_as_rehearsed({.budget = 2, .device = DeviceKind::emulated, .steps = 24});
}

TEST_CASE("Steady steps move no more than the plan says, with little memory and with much") {
  for (const double budget : {1.0, 1.3, 2.0, 3.0}) follows({.budget = budget});
}

TEST_CASE("Steady steps move no more than the plan says, through a device tier") {
  // At the least budget a transfer that is late has no room beside the pins: the next block is made room for elsewhere.
  for (const double budget : {1.3, 2.0, 3.0}) follows({.budget = budget, .device = DeviceKind::emulated});
}
