#include "report/advice.h"

#include <catch2/catch.hpp>

#include "report/made_record.h"
#include "report/tables.h"

namespace transload::report {
namespace {

using namespace test;

const std::string kOutlook =
    R"({"event":"outlook","step":2,"step_ns":900,"lower_bound_ns":300,"plain_bound_ns":300,"forward_ns":100,"backward_ns":400,)"
    R"("update_ns":100,"binds":"computation","what_if":[)"
    R"({"change":"host-memory","value":"300KiB","more_bytes":102400,"compute_ns":500,"step_ns":700,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":50,"nvme_write":25,"host_to_device":64,"device_to_host":32}},)"
    R"({"change":"host-memory","value":"400KiB","more_bytes":204800,"compute_ns":500,"step_ns":600,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":0,"nvme_write":0,"host_to_device":64,"device_to_host":32}},)"
    R"({"change":"host-memory","value":"900KiB","more_bytes":716800,"compute_ns":500,"step_ns":600,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":0,"nvme_write":0,"host_to_device":64,"device_to_host":32}},)"
    R"({"change":"device-memory","value":"50KiB","more_bytes":51200,"compute_ns":500,"step_ns":600,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":100,"nvme_write":50,"host_to_device":0,"device_to_host":0}},)"
    R"({"change":"recompute","value":"none","more_bytes":0,"compute_ns":400,"step_ns":600,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":100,"nvme_write":50,"host_to_device":64,"device_to_host":32}},)"
    R"({"change":"accumulate","value":"2","more_bytes":0,"compute_ns":1000,"step_ns":600,"lower_bound_ns":300,)"
    R"("links":{"nvme_read":100,"nvme_write":50,"host_to_device":64,"device_to_host":32}}]})"
    "\n";

/// A step of 1000 ns: 200 of computation, 50 of them made again, and 700 of what `events` says from 200 to 900.
Advice advice_of(const std::string& events, const std::string& outlook = kOutlook) {
  const Folder folder;
  const std::string text = kHeader + events + work(2, "compute", "layer forward", 0, 150) +
                           work(2, "compute", "layer recompute", 150, 200) + step(2, 1000, 100) + outlook + kEnd;
  return advise(read_model(folder.write("record.jsonl", text), 0));
}

TEST_CASE("the sentence names the cause and the smallest change that does nearly all") {
  const Advice reads = advice_of(wait(2, "issue", "content", 200, 900, R"(,"tier":"host","source":"nvme_read")") +
                                 span(2, "nvme_read", 200, 900));
  CHECK(reads.cause == Part::nvme_read);
  CHECK(reads.share == Approx(0.7).epsilon(1e-9));
  REQUIRE(reads.remedy);
  CHECK(reads.remedy->what.value == "400KiB");
  CHECK(reads.remedy->saves_s == Approx(700e-9).epsilon(1e-9));
  CHECK_THAT(reads.sentence, Catch::StartsWith("The step is bound by NVMe reads: 70 % of ") &&
                                 Catch::Contains("200.0 KiB more host memory (--host-memory 400KiB) would save "));

  const Advice writes =
      advice_of(wait(2, "issue", "room", 200, 900, R"(,"tier":"host")") + span(2, "nvme_write", 200, 900));
  CHECK(writes.cause == Part::nvme_write);
  CHECK(writes.remedy->what.value == "400KiB");

  const Advice down =
      advice_of(wait(2, "compute", "content", 200, 900, R"(,"tier":"device","source":"host_to_device")") +
                span(2, "host_to_device", 200, 900));
  CHECK(down.cause == Part::host_to_device);
  CHECK(down.remedy->what.change == "device-memory");

  const Advice up =
      advice_of(wait(2, "issue", "room", 200, 900, R"(,"tier":"device")") + span(2, "device_to_host", 200, 900));
  CHECK(up.cause == Part::device_to_host);
  CHECK(up.remedy->what.change == "device-memory");
}

TEST_CASE("what binds is named where no link is at work") {
  CHECK(advice_of(wait(2, "issue", "room", 200, 900, R"(,"tier":"host")")).cause == Part::host_room);
  CHECK(advice_of(wait(2, "issue", "room", 200, 900, R"(,"tier":"device")")).cause == Part::device_room);
  CHECK(advice_of(wait(2, "issue", "verdict", 200, 900)).cause == Part::verdict);
  CHECK(advice_of("").cause == Part::between);
  CHECK(advice_of(work(2, "comm", "gather", 200, 900)).cause == Part::collective);
}

TEST_CASE("computation: recomputation saves what was made again; updates: more micro-batches a step") {
  const Advice compute = advice_of(work(2, "compute", "layer backward", 200, 900));
  CHECK(compute.cause == Part::computation);
  REQUIRE(compute.remedy);
  CHECK(compute.remedy->what.change == "recompute");
  CHECK(compute.remedy->saves_s == Approx(50e-9).epsilon(1e-9));

  const Advice update = advice_of(work(2, "host", "update", 200, 900));
  CHECK(update.cause == Part::update);
  REQUIRE(update.remedy);
  CHECK(update.remedy->what.change == "accumulate");
  CHECK(update.remedy->step_s == Approx(1200e-9).epsilon(1e-9));
  CHECK(update.remedy->saves_s == Approx(400e-9).epsilon(1e-9));
}

TEST_CASE("without an outlook or without events nothing is made up") {
  const Advice none = advice_of(
      wait(2, "issue", "content", 200, 900, R"(,"tier":"host","source":"nvme_read")") + span(2, "nvme_read", 200, 900),
      "");
  CHECK_FALSE(none.remedy);
  CHECK_THAT(none.sentence, Catch::Contains("is not in this record"));
  const Folder folder;
  const Advice sums = advise(read_model(folder.write("r.jsonl", kHeader + step(2, 1000, 100)), 0));
  CHECK(sums.cause == Part::computation);
  CHECK(sums.share == Approx(0.5).epsilon(1e-9));
  CHECK_THAT(advise(read_model(folder.write("e.jsonl", kHeader), 0)).sentence, Catch::Contains("No step"));
}

}  // namespace
}  // namespace transload::report
