#include "report/attribution.h"

#include <catch2/catch.hpp>

#include <random>

#include "report/link_times.h"
#include "report/made_record.h"
#include "report/ranks.h"

namespace transload::report {
namespace {

using namespace test;

RunModel model_of(const std::string& text) {
  const Folder folder;
  return read_model(folder.write("record.jsonl", text), 0);
}

TEST_CASE("each part of a step is what its events say") {
  const Attribution parts = attribute(*model_of(whole_record()).shown);
  CHECK(parts.of(Part::host_to_device) == 100);
  CHECK(parts.of(Part::nvme_read) == 200);
  CHECK(parts.of(Part::computation) == 350);
  CHECK(parts.of(Part::update) == 150);
  CHECK(parts.of(Part::host_room) == 40);
  CHECK(parts.of(Part::nvme_write) == 60);
  CHECK(parts.of(Part::between) == 100);
  CHECK(parts.of(Part::device_to_host) == 0);
  CHECK(parts.cause() == Part::nvme_read);  // waits (400) are more than computation
}

TEST_CASE("parts add up to the step, whatever its events") {
  std::mt19937 random(7);
  const auto up_to = [&](long most) { return static_cast<long>(random() % static_cast<unsigned long>(most)); };
  const char* const kLaneNames[] = {"nvme_read", "nvme_write", "host_to_device", "device_to_host", "compute",
                                    "host",      "comm"};
  const char* const kCauses[] = {"room", "use", "content", "queue", "work", "verdict"};
  for (int round = 0; round < 200; ++round) {
    std::string text = kHeader;
    for (int i = 0; i < 30; ++i) {
      const long begin = up_to(1200) - 100;
      text += span(2, kLaneNames[up_to(7)], begin, begin + up_to(300));
      const long from = up_to(1200) - 100;
      text += wait(2, up_to(2) == 0 ? "issue" : "compute", kCauses[up_to(6)], from, from + up_to(300),
                   R"(,"tier":"device")");
    }
    const Attribution parts = attribute(*model_of(text + step(2, 1000, 1)).shown);
    std::int64_t sum = 0;
    for (const std::int64_t ns : parts.ns) {
      CHECK(ns >= 0);
      sum += ns;
    }
    CHECK(sum == 1000);
  }
}

TEST_CASE("a link's time that was hidden stays hidden when its bytes change") {
  const RunModel model = model_of(whole_record());
  const LinkTimes links = link_times(*model.shown, attribute(*model.shown));
  CHECK(links.busy_s[0] == Approx(250e-9).epsilon(1e-9));
  CHECK(links.waited_s[0] == Approx(200e-9).epsilon(1e-9));
  ChangedStep same{.bytes = links.bytes};
  CHECK(step_after(1e-6, links, same) == Approx(1e-6).epsilon(1e-9));
  ChangedStep none = same;
  none.bytes[0] = 0;
  CHECK(step_after(1e-6, links, none) == Approx(800e-9).epsilon(1e-9));
  ChangedStep half = same;
  half.bytes[0] = 50;  // nothing of it was hidden behind a processor
  CHECK(step_after(1e-6, links, half) == Approx(900e-9).epsilon(1e-9));
}

TEST_CASE("what a link does behind a processor costs nothing until it is more than that") {
  const std::string text = kHeader + work(2, "compute", "layer forward", 0, 600) + span(2, "nvme_read", 0, 800) +
                           wait(2, "issue", "content", 600, 800, R"(,"tier":"host","source":"nvme_read")");
  const RunModel model = model_of(text + step(2, 1000, 100));
  const LinkTimes links = link_times(*model.shown, attribute(*model.shown));
  CHECK(links.hidden_s[0] == Approx(600e-9).epsilon(1e-9));
  ChangedStep change{.bytes = links.bytes};
  change.bytes[0] = 75;  // 600 ns: all hidden
  CHECK(step_after(1e-6, links, change) == Approx(800e-9).epsilon(1e-9));
  change.bytes[0] = 87.5;
  CHECK(step_after(1e-6, links, change) == Approx(900e-9).epsilon(1e-9));
  change.bytes[0] = 100;
  change.more_compute_s = -100e-9;  // less computation hides less
  CHECK(step_after(1e-6, links, change) == Approx(1000e-9).epsilon(1e-9));
}

std::string rank_record(long wall, long first_collective, long second_collective) {
  return kHeader + work(2, "comm", "gather", 0, first_collective) +
         work(2, "comm", "gather", 200, 200 + second_collective, 1) + work(2, "compute", "layer forward", 300, 400) +
         step(2, wall, 1) + kEnd;
}

TEST_CASE("ranks: slowest, spread, and who is waited for") {
  std::vector<RunModel> ranks;
  for (const auto& text : {rank_record(1000, 100, 50), rank_record(1100, 30, 50), rank_record(1050, 100, 20)})
    ranks.push_back(model_of(text));
  for (int r = 0; r < 3; ++r) ranks[static_cast<std::size_t>(r)].rank = r;
  const RankTable table = compare_ranks(ranks);
  CHECK(table.slowest == 1);
  CHECK(table.spread == Approx(0.1).epsilon(1e-9));
  CHECK(table.missing.empty());
  CHECK(table.ranks[0].waited_for_others_s == Approx(100e-9).epsilon(1e-9));
  CHECK(table.ranks[1].waited_for_others_s == Approx(30e-9).epsilon(1e-9));
  CHECK(table.ranks[1].last_in_collectives == 1);
  CHECK(table.ranks[2].last_in_collectives == 1);
  REQUIRE(table.collectives.size() == 1);
  CHECK(table.collectives[0].count == 2);
  CHECK(table.collectives[0].most_skew_s == Approx(70e-9).epsilon(1e-9));
  CHECK(table.collectives[0].waited_s == Approx(200e-9).epsilon(1e-9));
}

std::string of_chunk(int chunk, long begin, long end) { return work(2, "comm", "sum", begin, end, chunk); }

TEST_CASE("ranks: what one of them does in more pieces is one collective") {
  const std::string end = work(2, "compute", "layer forward", 300, 400) + step(2, 1000, 1) + kEnd;
  const std::string whole = of_chunk(0, 0, 100) + of_chunk(1, 100, 150),
                    other = of_chunk(1, 0, 100) + of_chunk(0, 100, 150);
  const std::string pieces = of_chunk(0, 0, 20) + of_chunk(0, 30, 50) + of_chunk(1, 100, 180);
  const RankTable table = compare_ranks({model_of(kHeader + whole + end), model_of(kHeader + pieces + end)});
  CHECK(table.missing.empty());
  REQUIRE(table.collectives.size() == 1);
  CHECK(table.collectives[0].count == 2);
  CHECK(table.ranks[0].waited_for_others_s == Approx(60e-9).epsilon(1e-9));
  CHECK(table.ranks[1].waited_for_others_s == Approx(30e-9).epsilon(1e-9));
  CHECK_THAT(compare_ranks({model_of(kHeader + whole + end), model_of(kHeader + other + end)}).missing,
             Catch::Contains("same collectives"));
}

TEST_CASE("ranks whose records do not match are not compared by collective") {
  std::vector<RunModel> ranks{model_of(rank_record(1000, 100, 50)), model_of(whole_record())};
  CHECK_THAT(compare_ranks(ranks).missing, Catch::Contains("different steps"));
}

}  // namespace
}  // namespace transload::report
