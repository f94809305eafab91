// The timeline in the run record: complete, in order, documented; memory by use adds up and keeps within the budgets.
#include "train/record_checks.h"

using namespace transload;
using namespace transload::testing;

namespace {

constexpr std::int64_t kSlackNs = 50'000'000;  // of work at the edge of a step

RunCase tight(DeviceKind device) {
  RunCase c;
  c.device = device;
  c.budget = 1.5;
  c.steps = 3;
  return c;
}

std::map<std::uint64_t, StepEvents> run_and_check(const RunCase& c) {
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  train(o);
  return check_record(o.run, kSlackNs);
}

}  // namespace

TEST_CASE("The record of a run holds the whole timeline of its first steps") {
  const DeviceKind device = GENERATE(DeviceKind::cpu, DeviceKind::emulated);
  const bool lru = GENERATE(false, true);
  RunCase c = tight(device);
  c.lru = lru;
  CAPTURE(c.name());
  const auto steps = run_and_check(c);
  REQUIRE(steps.size() == 3);
  for (const auto& [number, step] : steps) {
    CAPTURE(number);
    const std::set<std::string> compute = operations(step, "compute");
    for (const char* name : {"embedding forward -1", "layer forward 0", "layer forward 1", "layer recompute 0",
                             "layer backward 1", "head forward -1", "head backward -1", "embedding backward -1"}) {
      CAPTURE(name);
      CHECK(compute.count(name) == 1);
    }
    CHECK(step.summary["clock"] == "host");
    CHECK(step.accesses.size() > 10);
  }
}

TEST_CASE("Each chunk's update is in the timeline of the step that applies it") {
  TempFolder folder;
  TrainOptions o = options_of(tight(DeviceKind::emulated), folder.path("run"));
  set_budget(o, 1.5);
  const Json summary = train(o);
  const auto steps = check_record(o.run, kSlackNs);
  CHECK(operations(steps.at(1), "host").empty());  // nothing is pending before the first gradients
  const std::set<std::string> updates = operations(steps.at(3), "host");
  CHECK(updates.size() == summary["chunks"].get<std::size_t>());
  CHECK(updates.count("update 0") == 1);
}

TEST_CASE("A slow link shows as waits for content that is on its way over it") {
  TempFolder folder;
  TrainOptions o = options_of(tight(DeviceKind::emulated), folder.path("run"));
  set_budget(o, 1.5);
  o.link_rate = 5e6;
  train(o);
  const auto steps = check_record(o.run, kSlackNs);
  std::int64_t waited = 0;
  for (const Json& wait : steps.at(3).waits)
    if (wait["cause"] == "content" && wait.value("source", "") == "host_to_device") {
      CHECK(wait["lane"] == "compute");
      CHECK(wait["tier"] == "device");
      CHECK(wait.contains("block"));
      waited += wait["end_ns"].get<std::int64_t>() - wait["begin_ns"].get<std::int64_t>();
    }
  CHECK(waited > steps.at(3).summary["wall_ns"].get<std::int64_t>() / 4);
}

TEST_CASE("Notes of the plan and bytes of a commit are in the record") {
  TempFolder folder;
  TrainOptions o = options_of(tight(DeviceKind::cpu), folder.path("run"));
  o.durable = false;
  o.commit_every.steps = 2;
  train(o);
  int notes = 0, commits = 0;
  for (const Json& line : record_of(o.run)) {
    notes += line["event"] == "note" && line["text"].get<std::string>().find("--durability none") != std::string::npos;
    if (line["event"] != "commit") continue;
    ++commits;
    CHECK(line["written_bytes"].get<std::uint64_t>() > 0);
  }
  CHECK(notes == 1);
  CHECK(commits == 2);
}

TEST_CASE("Without events a run has the same bits, and a line a step") {
  TempFolder folder;
  std::string fingerprint;
  for (const bool events : {true, false}) {
    CAPTURE(events);
    TrainOptions o = options_of(tight(DeviceKind::emulated), folder.path(events ? "with" : "without"));
    set_budget(o, 1.5);
    o.record_events = events;
    train(o);
    if (events) fingerprint = fingerprint_run(o.run, {});
    CHECK(fingerprint_run(o.run, {}) == fingerprint);
    std::map<std::string, int> lines;
    std::ifstream record(o.run + "/record.jsonl");
    for (std::string line; std::getline(record, line);) ++lines[Json::parse(line)["event"].get<std::string>()];
    CHECK(lines["step"] == 3);
    for (const char* event : {"access", "span", "memory"}) CHECK((lines[event] > 0) == events);
  }
}
