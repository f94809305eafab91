#include "trace/run_record.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

using namespace transload;
using Json = nlohmann::json;

namespace {

class RecordFile {
 public:
  RecordFile() {
    const int fd = ::mkstemp(path_);
    REQUIRE(fd >= 0);
    ::close(fd);
  }
  ~RecordFile() { ::unlink(path_); }
  const char* path() const { return path_; }
  std::vector<Json> lines() const {
    std::vector<Json> out;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  /// Lines of an event in a step.
  std::size_t count(const std::string& event, std::uint64_t step) const {
    std::size_t n = 0;
    for (const Json& line : lines()) n += line["event"] == event && line.value("step", std::uint64_t{0}) == step;
    return n;
  }

 private:
  char path_[32] = "/tmp/transload_record_XXXXXX";
};

std::vector<AccessEvent> accesses(std::size_t n) {
  std::vector<AccessEvent> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = {.start_ns = 10 * i, .wait_ns = i, .block = BlockId(i), .tier = Tier::device, .kind = AccessKind::update};
  return out;
}

}  // namespace

TEST_CASE("Every line of a record is a JSON object with its event") {
  RecordFile file;
  {
    RunRecord record(file.path(), {});
    record.write("run", "\"format\":1");
    record.write("note", "");
    record.write("text \"quoted\"\n", "\"a\":" + json_string("back\\slash \x01 \"q\""));
    record.write_step(1, false, "\"loss\":2.5", accesses(2));
  }
  const std::vector<Json> lines = file.lines();
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == Json{{"event", "run"}, {"format", 1}});
  CHECK(lines[1] == Json{{"event", "note"}});
  CHECK(lines[2] == Json{{"event", "text \"quoted\"\n"}, {"a", "back\\slash \x01 \"q\""}});
  CHECK(lines[4] == Json{{"event", "access"},
                         {"step", 1},
                         {"tick", 1},
                         {"block", 1},
                         {"tier", "device"},
                         {"kind", "update"},
                         {"start_ns", 10},
                         {"wait_ns", 1},
                         {"ready", true},
                         {"found", "none"}});
  CHECK(lines[5] == Json{{"event", "step"}, {"step", 1}, {"deviated", false}, {"loss", 2.5}});
}

TEST_CASE("All events of the first steps, of every n-th and of deviating ones; one line for the others") {
  RecordFile file;
  {
    RunRecord record(file.path(), {.first_steps = 2, .every = 5});
    for (std::uint64_t step = 1; step <= 11; ++step) record.write_step(step, step == 7, "", accesses(3));
  }
  for (std::uint64_t step = 1; step <= 11; ++step) {
    CAPTURE(step);
    CHECK(file.count("step", step) == 1);
    const bool detailed = step <= 2 || step % 5 == 0 || step == 7;
    CHECK(file.count("access", step) == (detailed ? 3 : 0));
  }
}

TEST_CASE("A resumed run's first steps are detailed whatever their number, and it appends") {
  RecordFile file;
  for (const std::uint64_t first : {1u, 41u}) {
    RunRecord record(file.path(), {.first_steps = 1, .every = 100});
    record.write_step(first, false, "", accesses(1));
    record.write_step(first + 1, false, "", accesses(1));
  }
  CHECK(file.count("access", 1) == 1);
  CHECK(file.count("access", 2) == 0);
  CHECK(file.count("access", 41) == 1);
  CHECK(file.count("access", 42) == 0);
}

TEST_CASE("Events stop where the record's room for them ends; summary lines go on") {
  RecordFile file;
  constexpr std::uint64_t kRoom = 4000;
  {
    RunRecord record(file.path(), {.first_steps = 1000, .every = 1, .event_bytes = kRoom});
    for (std::uint64_t step = 1; step <= 200; ++step) record.write_step(step, true, "", accesses(10));
  }
  std::uint64_t event_bytes = 0, steps = 0;
  std::ifstream in(file.path());
  for (std::string line; std::getline(in, line);) {
    if (Json::parse(line)["event"] == "access")
      event_bytes += line.size() + 1;
    else
      ++steps;
  }
  CHECK(steps == 200);
  CHECK(event_bytes >= kRoom);
  CHECK(event_bytes < kRoom + 200);  // the line that crossed it
}

TEST_CASE("A step's timeline is written with its accesses, from the start of the step, within the same room") {
  RecordFile file;
  Timeline timeline({.spans = 4, .waits = 2, .samples = 1});
  timeline.begin();
  const std::uint64_t start = timeline.begin_ns();
  timeline.add(Span{.begin_ns = start - 5,
                    .end_ns = start + 7,
                    .bytes = 64,
                    .block = BlockId(3),
                    .lane = Lane::nvme_read,
                    .ahead = true});
  timeline.add(Span{.begin_ns = start + 1, .end_ns = start + 2, .name = "update", .index = 9, .lane = Lane::host});
  timeline.add(Wait{.begin_ns = start + 1,
                    .end_ns = start + 4,
                    .block = BlockId(2),
                    .lane = Lane::compute,
                    .cause = WaitCause::content,
                    .tier = Tier::device,
                    .source = Lane::host_to_device});
  timeline.add(Wait{.begin_ns = start + 5, .end_ns = start + 6, .cause = WaitCause::verdict});
  MemorySample sample{.at_ns = start + 8, .tier = Tier::host, .used_bytes = 30};
  sample.bytes[static_cast<std::size_t>(MemoryKind::in_flight)] = 30;
  timeline.add(sample);
  timeline.add(sample);
  timeline.end();
  {
    RunRecord record(file.path(), {.first_steps = 1, .every = 0});
    CHECK(record.expects_events(1));
    record.write_step(1, false, "", {}, &timeline);
    CHECK(!record.expects_events(2));
    record.write_step(2, false, "", {}, &timeline);
  }
  const std::vector<Json> lines = file.lines();
  REQUIRE(lines.size() == 7);
  CHECK(lines[0] == Json::parse(R"({"event":"span","step":1,"lane":"nvme_read","begin_ns":-5,"end_ns":7,"block":3,
                                    "bytes":64,"ahead":true})"));
  CHECK(lines[1] == Json::parse(R"({"event":"span","step":1,"lane":"host","begin_ns":1,"end_ns":2,"name":"update",
                                    "tasks":1,"index":9})"));
  CHECK(lines[2] == Json::parse(R"({"event":"wait","step":1,"lane":"compute","begin_ns":1,"end_ns":4,
                                    "cause":"content","block":2,"tier":"device","source":"host_to_device"})"));
  CHECK(lines[3] == Json::parse(R"({"event":"wait","step":1,"lane":"issue","begin_ns":5,"end_ns":6,
                                    "cause":"verdict"})"));
  CHECK(lines[4] == Json::parse(R"({"event":"memory","step":1,"tier":"host","at_ns":8,"used":30,"in_flight":30})"));
  CHECK(lines[5] == Json::parse(R"({"event":"step","step":1,"deviated":false,"events_lost":1})"));
  CHECK(lines[6]["event"] == "step");
}

TEST_CASE("A line that a kill cut off is dropped when the run goes on") {
  for (const std::string& torn : {std::string(), std::string("{\"event\":\"st"), std::string(10000, 'x')}) {
    RecordFile file;
    for (const char* event : {"run", "end"}) {
      RunRecord(file.path(), {}).write(event, "");
      if (event[0] == 'r') std::ofstream(file.path(), std::ios::app) << torn;
    }
    const std::vector<Json> lines = file.lines();
    REQUIRE(lines.size() == 2);
    CHECK(lines[1]["event"] == "end");
  }
}

TEST_CASE("A record that cannot be made says so") {
  CHECK_THROWS_AS(RunRecord("/nonexistent-folder/record.jsonl", {}), IoError);
}

TEST_CASE("A full drive is not taken for a record") {
  RunRecord record("/dev/full", {});
  const auto fill = [&] {
    for (int i = 0; i < 10000; ++i) record.write("note", "\"text\":\"0123456789\"");
    record.flush();
  };
  CHECK_THROWS_AS(fill(), IoError);
}
