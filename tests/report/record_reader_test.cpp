#include "report/record_reader.h"

#include <catch2/catch.hpp>

#include "report/flat_line.h"
#include "report/made_record.h"
#include "report/record_lines.h"
#include "report/run_model.h"

namespace transload::report {
namespace {

using namespace test;

/// All lines of a text, as they come back, and how the reading ended.
std::vector<std::string> lines_of(const std::string& text, RecordLines::Found& last) {
  const Folder folder;
  RecordLines lines(folder.write("record.jsonl", text));
  std::vector<std::string> out;
  std::string_view line;
  for (;;) {
    const RecordLines::Found found = lines.next(line);
    if (found == RecordLines::Found::end) return out;
    last = found;
    out.emplace_back(found == RecordLines::Found::too_long ? "too long" : line);
  }
}

TEST_CASE("lines come whole across pieces of the file") {
  std::string text;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; text.size() < 3 * RecordLines::kPiece; ++i) {
    wanted.emplace_back(i * 7919 % 70000, static_cast<char>('a' + i % 26));
    text += wanted.back() + "\n";
  }
  RecordLines::Found last{};
  CHECK(lines_of(text, last) == wanted);
  CHECK(last == RecordLines::Found::line);
  CHECK(lines_of("", last).empty());
  CHECK(lines_of("\n", last) == std::vector<std::string>{""});
  CHECK(lines_of("a\nb", last) == std::vector<std::string>{"a", "b"});
  CHECK(last == RecordLines::Found::torn);
}

TEST_CASE("a line that is too long is passed over, the next one is read") {
  const std::string text = "a\n" + std::string(RecordLines::kMostLine + 5, 'x') + "\nb\n";
  RecordLines::Found last{};
  CHECK(lines_of(text, last) == std::vector<std::string>{"a", "too long", "b"});
}

TEST_CASE("a flat line gives its values") {
  FlatLine line;
  REQUIRE(line.parse(R"({"event":"span","step":3,"begin_ns":-17,"ahead":true,"x":1.5e-3,"n":null})"));
  CHECK(line.text("event") == "span");
  CHECK(line.whole("begin_ns") == -17);
  CHECK(line.whole("step") == 3);
  CHECK(line.truth("ahead") == true);
  CHECK_FALSE(line.whole("x"));
  CHECK_FALSE(line.whole("event"));
  CHECK_FALSE(line.text("step"));
  CHECK_FALSE(line.truth("n"));
  CHECK_FALSE(line.text("missing"));
}

TEST_CASE("what is no flat object is refused") {
  FlatLine line;
  for (const char* text : {"", "{", "{}", "x", R"({"a":{"b":1}})", R"({"a":[1]})", R"({"a":"\n"})", R"({"a":1)",
                           R"({"a":1}})", R"({"a" 1})", R"({"a":,"b":1})", R"({a:1})", R"({"a":"b)"})
    CHECK_FALSE(line.parse(text));
}

TEST_CASE("sums of a whole record are the record's") {
  const Folder folder;
  const RunModel m = read_model(folder.write("record.jsonl", whole_record()), 0);
  CHECK(m.facts.missing().empty());
  CHECK(m.totals.steps == 3);
  CHECK(m.totals.wall_ns == 900 + 1010 + 1000);
  CHECK(m.totals.hits == 9);
  CHECK(m.totals.late == 6);
  CHECK(m.totals.demand == 3);
  CHECK(m.totals.wasted == 3);
  CHECK(m.totals.links[0].bytes == 210);
  CHECK(m.totals.links[1].transfers == 3);
  CHECK(m.totals.links[2].busy_ns == 150);
  CHECK(m.totals.commits == 1);
  CHECK(m.totals.commit_bytes == 77);
  CHECK(m.medians.of_steps == 2);
  CHECK(m.medians.wall_s == Approx(1010e-9).epsilon(1e-12));
  CHECK(m.notes == std::vector<std::string>{"the \"first\" <note>"});
  REQUIRE(m.shown);
  CHECK(m.shown->line.step == 3);
  CHECK(m.shown->events.spans.size() == 7);
  CHECK(m.shown->events.accesses.size() == 4);
  CHECK(m.shown->events.waits.size() == 2);
  CHECK(m.shown->events.memory.size() == 3);
  CHECK(m.header.bytes("budgets.host") == 200);
  CHECK(m.header.blocks.size() == 3);
  CHECK(m.header.blocks[1].chunk == 1);
  CHECK(m.header.blocks[2].chunk == -1);
  CHECK(m.first_loss == 5);
  CHECK(m.last_loss == 3);
}

TEST_CASE("a record that is cut anywhere is read as far as it goes") {
  const std::string whole = whole_record();
  const Folder folder;
  std::uint64_t steps_before = 0;
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    const RunModel m = read_model(folder.write("cut.jsonl", whole.substr(0, length)), 0);
    INFO(length);
    CHECK(m.totals.steps >= steps_before);
    CHECK(m.facts.garbled == 0);
    CHECK_FALSE(m.facts.missing().empty());
    CHECK(m.facts.torn == (length > 0 && whole[length - 1] != '\n'));
    steps_before = m.totals.steps;
  }
  CHECK(steps_before == 3);
}

TEST_CASE("garbled lines are counted, the first is named, and the rest is read") {
  std::string text = whole_record();
  text.insert(
      text.find("{\"event\":\"span\""),
      "{\"event\":\"span\",\"step\":3,\"lane\":\"no such lane\",\"begin_ns\":1,\"end_ns\":2}\n\x01\x02garbage\n");
  const Folder folder;
  const RunModel m = read_model(folder.write("record.jsonl", text), 0);
  CHECK(m.facts.garbled == 2);
  CHECK(m.facts.first_garbled == 9);
  CHECK(m.totals.steps == 3);
  CHECK(m.shown->events.spans.size() == 7);
  REQUIRE(m.facts.missing().size() == 1);
  CHECK_THAT(m.facts.missing()[0], Catch::Contains("2 lines could not be read (the first is line 9)"));
}

TEST_CASE("a line nested a million deep is garbled, the rest is read") {
  constexpr std::size_t kDeep = 1'000'000;
  std::string objects = R"({"event":"run","x":)", arrays = objects;
  for (std::size_t i = 0; i < kDeep; ++i) objects += R"({"a":)";
  objects += "1" + std::string(kDeep + 1, '}') + "\n";
  arrays += std::string(kDeep, '[') + std::string(kDeep, ']') + "}\n";
  // brackets within a text are no depth
  const std::string text = R"({"event":"note","text":"\")" + std::string(100, '[') + "\"}\n";
  const Folder folder;
  const RunModel m =
      read_model(folder.write("record.jsonl", kHeader + objects + arrays + text + step(1, 9, 1) + kEnd), 0);
  CHECK(m.facts.garbled == 2);
  CHECK(m.facts.first_garbled == 2);
  CHECK(m.notes.size() == 1);
  CHECK(m.totals.steps == 1);
}

TEST_CASE("other versions: unknown events and newer formats are said, older lines do") {
  std::string text = whole_record();
  text.replace(text.find("\"format\":1"), 10, "\"format\":2");
  text += "{\"event\":\"hologram\",\"x\":1}\n{\"event\":\"hologram\",\"x\":{}}\n";
  const Folder folder;
  const auto missing = read_model(folder.write("newer.jsonl", text), 0).facts.missing();
  REQUIRE(missing.size() == 2);
  CHECK_THAT(missing[0], Catch::Contains("format 2"));
  CHECK_THAT(missing[1], Catch::Contains("2 events of kinds") && Catch::Contains("hologram"));

  const std::string old =
      R"({"event":"access","step":1,"tick":0,"block":0,"tier":"host","kind":"read","start_ns":5,"wait_ns":6,"ready":false})"
      "\n"
      R"({"event":"step","step":1,"wall_ns":10})"
      "\n";
  const RunModel m = read_model(folder.write("older.jsonl", old), 0);
  REQUIRE(m.shown);
  CHECK(m.shown->events.accesses[0].found == Found::late);
  CHECK_THAT(m.facts.missing()[0], Catch::Contains("no header"));
}

TEST_CASE("a drop-in optimizer's record says less and opens as well") {
  std::string text = R"({"event":"run","format":1,"kind":"optimizer","blocks":[["chunk 0 moment1",64,"moment1",true]],)"
                     R"("budgets":{"device":0,"host":200,"nvme":null,"frame":8},"least":{"device":0,"host":60}})"
                     "\n";
  text += work(1, "host", "update", 0, 10) + R"({"event":"step","step":1,"deviated":false,"wall_ns":900,"wait_ns":5})"
                                             "\n";
  text += work(2, "host", "update", 0, 10) + R"({"event":"step","step":2,"deviated":false,"wall_ns":40,"wait_ns":5})"
                                             "\n";
  const Folder folder;
  const RunModel m = read_model(folder.write("record.jsonl", text), 0);
  CHECK(m.header.optimizer);
  CHECK(m.facts.missing().empty());
  CHECK(m.medians.wall_s == Approx(40e-9).epsilon(1e-12));  // the first step makes the state
  REQUIRE(m.shown);
  CHECK(m.shown->line.step == 2);
}

TEST_CASE("of a resumed run the last process is shown, and all steps are counted") {
  std::string first = whole_record();
  first.erase(first.find(kEnd));
  std::string again = kHeader;
  again.replace(again.find("\"host\":200"), 10, "\"host\":300");
  const Folder folder;
  const RunModel m = read_model(folder.write("record.jsonl", first + again + step(4, 500, 7) + kEnd), 0);
  CHECK(m.totals.steps == 4);
  CHECK(m.header.bytes("budgets.host") == 300);
  CHECK(m.medians.wall_s == Approx(500e-9).epsilon(1e-12));
  CHECK_FALSE(m.shown);
  CHECK(m.facts.headers == 2);
}

TEST_CASE("a million steps are a bounded series whose sums are theirs") {
  StepSeries series;
  StepLine line;
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
    line.step = i;
    line.wall_ns = i % 1000 * 1'000'000;
    series.add(line);
  }
  CHECK(series.points().size() <= StepSeries::kMostPoints);
  std::uint64_t steps = 0;
  double sum = 0;
  for (const StepSeries::Point& p : series.points()) {
    CHECK(p.first_step == steps + 1);
    steps += p.steps;
    sum += p.sum_s;
  }
  CHECK(steps == 1'000'000);
  CHECK(sum == Approx(499.5 * 1000).epsilon(1e-9));
}

}  // namespace
}  // namespace transload::report
