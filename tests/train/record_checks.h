// What every run record must satisfy: its lines are documented, its spans are in order and complete, its memory adds
// up.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "base/timeline.h"
#include "train/run_cases.h"

namespace transload::testing {

inline std::vector<Json> record_of(const std::string& run) {
  std::vector<Json> lines;
  std::ifstream file(run + "/record.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// The record's section of docs/formats.md.
inline std::string documented() {
  std::ifstream file(TRANSLOAD_SOURCE_DIR "/docs/formats.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t begin = text.find("## record.jsonl"), end = text.find("## summary.json");
  REQUIRE((begin != std::string::npos && end != std::string::npos && begin < end));
  return text.substr(begin, end - begin);
}

/// Each kind of line is documented, has all that it must have, and nothing that is not documented.
inline void check_documented(const std::vector<Json>& record) {
  const std::string docs = documented();
  const std::map<std::string, std::set<std::string>> needed = {
      {"run", {"format", "version", "machine", "budgets", "least", "rates", "links", "paths", "blocks", "gpu"}},
      {"step", {"step", "deviated", "loss", "wall_ns", "wait_ns", "links", "clock", "clock_error_ns", "events_lost"}},
      {"access", {"step", "tick", "block", "tier", "kind", "start_ns", "wait_ns", "ready", "found"}},
      {"span", {"step", "lane", "begin_ns", "end_ns"}},
      {"wait", {"step", "lane", "begin_ns", "end_ns", "cause"}},
      {"memory", {"step", "tier", "at_ns", "used"}},
      {"commit", {"step", "seconds", "written_bytes", "link_bytes"}},
      {"note", {"text"}},
      {"outlook", {"step", "step_ns", "lower_bound_ns", "binds", "what_if"}},
      {"evaluation", {"step", "loss"}},
      {"end", {"step", "interrupted"}}};
  for (const Json& line : record) {
    const std::string event = line.at("event");
    CAPTURE(event, line.dump());
    REQUIRE(docs.find("`\"event\":\"" + event + "\"`") != std::string::npos);
    for (const std::string& key : needed.at(event)) {
      CAPTURE(key);
      REQUIRE(line.contains(key));
    }
    for (const auto& [key, value] : line.items()) {
      CAPTURE(key);
      REQUIRE((key == "event" || docs.find("`" + key + "`") != std::string::npos));
    }
  }
}

struct StepEvents {
  Json summary;
  std::vector<Json> spans, waits, memory, accesses;
};
inline std::map<std::uint64_t, StepEvents> events_by_step(const std::vector<Json>& record) {
  std::map<std::uint64_t, StepEvents> steps;
  for (const Json& line : record) {
    const std::string event = line["event"];
    StepEvents& step = steps[line.value("step", std::uint64_t{0})];
    if (event == "step") step.summary = line;
    if (event == "span") step.spans.push_back(line);
    if (event == "wait") step.waits.push_back(line);
    if (event == "memory") step.memory.push_back(line);
    if (event == "access") step.accesses.push_back(line);
  }
  std::erase_if(steps, [](const auto& s) { return s.second.summary.is_null(); });
  return steps;
}

/// Spans of a lane in their order; on lanes that are streams none begins before the last one ended.
inline void check_spans(const StepEvents& step, std::int64_t slack_ns) {
  const std::int64_t wall = step.summary["wall_ns"];
  std::map<std::string, std::int64_t> until;
  std::map<std::string, std::uint64_t> transfers, bytes;
  for (const Json& span : step.spans) {
    const std::string lane = span["lane"];
    const std::int64_t begin = span["begin_ns"], end = span["end_ns"];
    CAPTURE(span.dump(), wall);
    REQUIRE(begin <= end);
    REQUIRE(end >= -slack_ns);
    REQUIRE(end <= wall + slack_ns);
    if (!lane.starts_with("nvme")) {
      if (until.count(lane) > 0) REQUIRE(begin >= until[lane]);
      until[lane] = end;
    }
    if (span.contains("bytes")) {
      ++transfers[lane];
      bytes[lane] += span["bytes"].get<std::uint64_t>();
    }
  }
  for (const auto& [lane, link] : step.summary["links"].items()) {
    CAPTURE(lane, step.summary["step"]);
    CHECK(transfers[lane] == link["transfers"].get<std::uint64_t>());
    CHECK(bytes[lane] == link["bytes"].get<std::uint64_t>());
  }
}

/// Work on processors: as long as the counters say, but for what is between tasks that became one span.
inline void check_processors(const StepEvents& step) {
  std::map<std::string, std::uint64_t> busy, tasks;
  for (const Json& span : step.spans) {
    if (!span.contains("tasks")) continue;
    const std::string lane = span["lane"];
    busy[lane] += span["end_ns"].get<std::uint64_t>() - span["begin_ns"].get<std::uint64_t>();
    tasks[lane] += span["tasks"].get<std::uint64_t>();
  }
  for (const auto& [lane, key] : {std::pair{"compute", "compute_ns"}, {"host", "update_ns"}}) {
    const std::uint64_t counted = step.summary[key];
    CAPTURE(lane, busy[lane], counted, tasks[lane]);
    CHECK(busy[lane] + 1000 >= counted);  // seconds as doubles in between
    CHECK(busy[lane] <= counted + 2000 * tasks[lane] + 1000);
  }
}

inline void check_waits(const StepEvents& step, std::int64_t slack_ns) {
  std::int64_t until = -slack_ns, engine = 0;
  int verdicts = 0;
  for (const Json& wait : step.waits) {
    const std::int64_t begin = wait["begin_ns"], end = wait["end_ns"];
    CAPTURE(wait.dump());
    REQUIRE(begin <= end);
    REQUIRE(end <= step.summary["wall_ns"].get<std::int64_t>() + slack_ns);
    if (wait["lane"] != "issue") continue;
    REQUIRE(begin >= until);  // one thread waits for one thing at a time
    until = end;
    const std::string cause = wait["cause"];
    verdicts += cause == "verdict";
    if (cause == "room" || cause == "use") engine += end - begin;
  }
  CHECK(verdicts >= 1);
  CHECK(engine <= step.summary["wait_ns"].get<std::int64_t>());
}

inline void check_memory(const StepEvents& step, const Json& budgets, std::map<std::string, std::uint64_t>& peak) {
  std::map<std::string, std::int64_t> at;
  for (const Json& sample : step.memory) {
    const std::string tier = sample["tier"];
    CAPTURE(sample.dump());
    std::uint64_t sum = 0;
    for (int use = 0; use < kMemoryUses; ++use)
      sum += sample.value(name_of(static_cast<MemoryKind>(use)), std::uint64_t{0});
    const std::uint64_t used = sample["used"];
    REQUIRE(sum == used);
    if (tier != "nvme") REQUIRE(used <= budgets[tier].get<std::uint64_t>());
    if (at.count(tier) > 0) REQUIRE(sample["at_ns"].get<std::int64_t>() >= at[tier]);
    at[tier] = sample["at_ns"];
    peak[tier] = std::max(peak[tier], used);
  }
  CHECK(at.count("host") == 1);
}

/// All of it, of a run whose steps were all recorded. `slack_ns`: of the device's clock, and of work that began before.
inline std::map<std::uint64_t, StepEvents> check_record(const std::string& run, std::int64_t slack_ns) {
  const std::vector<Json> record = record_of(run);
  REQUIRE(!record.empty());
  check_documented(record);
  std::map<std::uint64_t, StepEvents> steps = events_by_step(record);
  std::map<std::string, std::uint64_t> peak;
  for (const auto& [number, step] : steps) {
    CAPTURE(number);
    CHECK(step.summary["events_lost"] == 0);
    check_spans(step, slack_ns);
    check_processors(step);
    check_waits(step, slack_ns);
    check_memory(step, record.front()["budgets"], peak);
  }
  std::ifstream file(run + "/summary.json");
  const Json summary = Json::parse(file);
  for (const auto& [tier, facts] : summary["tiers"].items()) CHECK(peak[tier] <= facts["peak"].get<std::uint64_t>());
  return steps;
}

/// Names and indices of a processor's work in a step.
inline std::set<std::string> operations(const StepEvents& step, const std::string& lane) {
  std::set<std::string> names;
  for (const Json& span : step.spans)
    if (span["lane"] == lane && span.contains("name"))
      names.insert(fmt::format("{} {}", span["name"].get<std::string>(), span.value("index", -1)));
  return names;
}

}  // namespace transload::testing
