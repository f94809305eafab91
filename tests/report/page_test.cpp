#include <catch2/catch.hpp>

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "report/made_record.h"
#include "report/report.h"
#include "report/svg.h"
#include "report/tables.h"

namespace transload::report {
namespace {

using namespace test;
using Json = nlohmann::json;

TEST_CASE("the page is self-contained, and what a record says is text in it") {
  const Folder folder;
  std::string text = whole_record();
  text.replace(text.find("\"tiny\""), 6, "\"<script>alert(1)</script>\"");
  folder.write("record.jsonl", text);
  const std::string page = html_page(read_report(folder.path()), nullptr);
  for (const char* never :
       {"<script", "http:", "https:", "url(", "@import", "<img", "<link rel=\"stylesheet", "onload", "nan", "inf\""})
    CHECK_THAT(page, !Catch::Contains(never));
  CHECK_THAT(page, Catch::Contains("&lt;script&gt;alert(1)"));
  CHECK_THAT(page, Catch::Contains("the &quot;first&quot; &lt;note&gt;"));
  for (const char* section :
       {"parts", "tiers", "timeline", "links", "map", "fetches", "outlook", "wear", "warnings", "environment"})
    CHECK_THAT(page, Catch::Contains(fmt::format("<section id=\"s-{}\">", section)));
  for (const char* value :
       {"data-key=\"links.nvme_read.bytes\" data-value=\"210\"", "data-key=\"part.nvme_read\" data-value=\"200\"",
        "data-key=\"wear.bytes\" data-value=\"227\"", "data-key=\"memory.host.most\" data-value=\"168\""})
    CHECK_THAT(page, Catch::Contains(value));
}

TEST_CASE("pages of records that hold little are whole") {
  const Folder folder;
  for (const std::string& text : {std::string(), kHeader, step(1, 0, 0), kHeader + step(1, 1000, 5)}) {
    folder.write("record.jsonl", text);
    const Report report = read_report(folder.path());
    CHECK_THAT(html_page(report, &report), Catch::EndsWith("</html>\n"));
    CHECK_FALSE(text_page(report).empty());
    CHECK_FALSE(text_comparison(report, report).empty());
  }
}

TEST_CASE("times that no run has are garbled, and a step of no time draws no NaN") {
  constexpr long kFar = std::numeric_limits<long>::max();
  const Folder folder;
  folder.write("record.jsonl", kHeader + span(1, "nvme_read", -kFar, kFar) + wait(1, "issue", "room", -kFar, 5) +
                                   access(1, 0, 0, "device", kFar, 1, "hit") + memory(1, "host", -kFar, 1, 1) +
                                   step(1, kFar, 1) + span(2, "nvme_read", 0, 100) + memory(2, "host", 5, 1, 1) +
                                   step(2, 0, 1) + kEnd);
  const Report report = read_report(folder.path());
  CHECK(report.first().facts.garbled == 5);
  CHECK(report.first().totals.steps == 1);
  const std::string page = html_page(report, nullptr);
  CHECK_THAT(page, Catch::Contains("memory over the step"));
  CHECK_THAT(page, !Catch::Contains("nan"));
}

TEST_CASE("ranks' records are found by their names, in order; other files are not") {
  const Folder folder;
  for (const char* name :
       {"record-r10.jsonl", "record-r2.jsonl", "record.jsonl", "record-rx.jsonl", "record-r1.json", "record-r-1.jsonl"})
    folder.write(name, whole_record());
  const std::vector<std::string> files = record_files(folder.path());
  REQUIRE(files.size() == 3);
  CHECK_THAT(files[0], Catch::EndsWith("/record.jsonl"));
  CHECK_THAT(files[1], Catch::EndsWith("/record-r2.jsonl"));
  CHECK_THAT(files[2], Catch::EndsWith("/record-r10.jsonl"));
  CHECK(record_files(files[1]) == std::vector<std::string>{files[1]});
  CHECK_THROWS_AS(record_files(folder.path() + "/none"), InputError);
  const Folder empty;
  CHECK_THROWS_AS(record_files(empty.path()), InputError);
}

TEST_CASE("rectangles that touch are joined; the path is bounded") {
  RectanglePath path(0, 1'000'000, 10);
  for (std::int64_t i = 0; i < 1'000'000; i += 3) path.add(i, i + 1);
  CHECK(path.d() == "M0 0h6000v10h-6000z");
  RectanglePath two(0, 6000, 10);
  two.add(10, 20);
  two.add(40, 41);
  two.add(15, 30, 2);
  CHECK(two.d() == "M10 0h10v10h-10zM40 0h1v10h-1zM15 20h15v10h-15z");
}

/// What the format of Chrome trace events asks for.
void check_trace(const Json& trace) {
  REQUIRE(trace["traceEvents"].is_array());
  std::map<std::uint64_t, int> starts, finishes;
  std::map<std::pair<int, int>, std::set<std::pair<double, double>>> slices;
  std::set<std::pair<int, int>> named;
  for (const Json& e : trace["traceEvents"]) {
    const std::string ph = e.at("ph");
    REQUIRE(std::string("XMCsf").find(ph) != std::string::npos);
    REQUIRE(e.at("name").is_string());
    REQUIRE(e.at("pid").is_number_integer());
    REQUIRE(e.at("tid").is_number_integer());
    const std::pair<int, int> thread{e["pid"], e["tid"]};
    if (ph == "M") {
      if (e["name"] == "thread_name") named.insert(thread);
      continue;
    }
    REQUIRE(e.at("ts").get<double>() >= 0);
    if (ph == "X") {
      REQUIRE(e.at("dur").get<double>() >= 0);
      slices[thread].emplace(e["ts"].get<double>(), e["ts"].get<double>() + e["dur"].get<double>());
    }
    if (ph == "s") ++starts[e.at("id").get<std::uint64_t>()];
    if (ph == "f") ++finishes[e.at("id").get<std::uint64_t>()];
    if (ph == "C")
      for (const auto& [use, bytes] : e.at("args").items()) REQUIRE(bytes.is_number());
  }
  CHECK(starts == finishes);
  for (const auto& [id, count] : starts) CHECK(count == 1);
  for (const auto& [thread, list] : slices) {
    CHECK(named.count(thread) == 1);
    double end = -1;
    if (thread.second >= 600) continue;  // waits and accesses nest
    for (const auto& [from, to] : list) {
      CHECK(from >= end - 1e-6);
      end = to;
    }
  }
}

TEST_CASE("the trace is what its format asks for: threads without overlaps, flows in pairs, counters") {
  const Folder folder;
  folder.write("record.jsonl", whole_record());
  folder.write("record-r1.jsonl", whole_record());
  const std::string path = folder.path() + "/trace.json";
  write_trace(folder.path(), path);
  std::ifstream file(path);
  const Json trace = Json::parse(file);
  check_trace(trace);
  std::map<std::string, int> kinds;
  std::uint64_t moved = 0;
  for (const Json& e : trace["traceEvents"]) {
    ++kinds[e["ph"]];
    if (e["ph"] == "X" && e.value("cat", "") == "nvme_read") moved += e["args"]["bytes"].get<std::uint64_t>();
    if (e["ph"] == "f" && e["pid"] == 0) CHECK(e["ts"].get<double>() > 1.9);  // after the two steps before
  }
  CHECK(kinds["C"] == 6);
  CHECK(kinds["s"] == 4);  // two fetches of block 0 are used, in each of two ranks
  CHECK(moved == 200);
}

}  // namespace
}  // namespace transload::report
