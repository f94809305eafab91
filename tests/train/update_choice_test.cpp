// Which chunks the device updates: the search, what the planner chooses with it, and whole runs in which it differs.
#include "train/update_choice.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <set>

#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;

namespace {

/// Falls to `best`, rises from there; nothing fits above `fitting`.
std::uint64_t valley(std::uint64_t count, std::uint64_t best, std::uint64_t fitting) {
  if (count > fitting) return UINT64_MAX;
  return count <= best ? 10 + 4 * (best - count) : 10 + 12 * (count - best);
}

TrainOptions with_device(DeviceKind device, std::uint64_t device_bytes, const std::string& run) {
  TrainOptions o = options_of({.device = device, .chunk = 16 * KiB, .steps = 5}, run);
  if (device != DeviceKind::cpu) o.device_memory = device_bytes;
  return o;
}

std::uint64_t link_bytes(const RunPlan& plan) {
  return plan.plan.bytes[static_cast<int>(Link::host_to_device)] +
         plan.plan.bytes[static_cast<int>(Link::device_to_host)];
}

/// Bytes over the device's links in the run's last step, from its record.
std::uint64_t last_step_link_bytes(const std::string& run) {
  std::ifstream record(run + "/record.jsonl");
  std::uint64_t bytes = UINT64_MAX;
  for (std::string line; std::getline(record, line);) {
    const Json event = Json::parse(line);
    if (event["event"] != "step" || !event["planned"].get<bool>()) continue;
    const Json& links = event["links"];
    bytes =
        links["host_to_device"]["bytes"].get<std::uint64_t>() + links["device_to_host"]["bytes"].get<std::uint64_t>();
  }
  return bytes;
}

}  // namespace

TEST_CASE("The cheapest count of updates on the device is found in a few questions") {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const std::uint64_t most = round < 160 ? static_cast<std::uint64_t>(round) : random() % 5000;
    const std::uint64_t best = random() % (most + 1), fitting = random() % 3 == 0 ? random() % (most + 1) : most;
    CAPTURE(most, best, fitting);
    std::uint64_t asked = 0, least = UINT64_MAX;
    const std::uint64_t places = std::max<std::uint64_t>(std::min(most, kFinestUpdates), 1);
    for (std::uint64_t i = 0; i <= places; ++i) least = std::min(least, valley(most * i / places, best, fitting));
    const std::uint64_t chosen = choose_device_updates(most, [&](std::uint64_t count) {
      ++asked;
      return valley(count, best, fitting);
    });
    CHECK(valley(chosen, best, fitting) == least);
    CHECK(asked <= 13);
  }
  CHECK(choose_device_updates(7, [](std::uint64_t) { return 5; }) == 7);
  CHECK(choose_device_updates(7, [](std::uint64_t count) { return count == 0 ? 5 : UINT64_MAX; }) == 0);
}

TEST_CASE("More device memory never plans more bytes over its links; the choice is the same every time") {
  TempFolder folder;
  const RunPlan roomy = Trainer(with_device(DeviceKind::emulated, 1 * GiB, folder.path("run")), {}).plan();
  CHECK(roomy.device_updates == roomy.updated_chunks);
  CHECK(link_bytes(roomy) == 0);
  const std::uint64_t least = roomy.least_device_bytes, most = roomy.budgets.device_bytes;
  std::uint64_t before = UINT64_MAX;
  std::set<std::uint64_t> counts;
  for (std::uint64_t i = 0; i <= 48; ++i) {
    const TrainOptions o = with_device(DeviceKind::emulated, least + (most - least) * i / 48, folder.path("run"));
    CAPTURE(i, o.device_memory);
    const RunPlan plan = Trainer(o, {}).plan(), again = Trainer(o, {}).plan();
    CHECK(link_bytes(plan) <= before);
    CHECK(plan.device_updates == again.device_updates);
    CHECK(plan.least_device_bytes == least);
    before = link_bytes(plan);
    counts.insert(plan.device_updates);
  }
  CHECK(*counts.begin() == 0);
  CHECK(counts.size() > 5);
}

TEST_CASE("However many chunks the device updates, a run ends with the processor's bits") {
  TempFolder folder;
  TrainOptions o = with_device(DeviceKind::cpu, 0, folder.path("cpu"));
  train(o);
  const std::string expected = fingerprint_run(o.run, {});
  const RunPlan roomy = Trainer(with_device(DeviceKind::emulated, 1 * GiB, folder.path("any")), {}).plan();
  const std::uint64_t least = roomy.least_device_bytes, most = roomy.budgets.device_bytes;
  std::set<std::uint64_t> counts;
  for (const double share : {0.0, 0.2, 0.4, 0.6, 1.0}) {
    CAPTURE(share);
    o = with_device(DeviceKind::emulated, least + static_cast<std::uint64_t>(share * static_cast<double>(most - least)),
                    folder.path(fmt::format("share{}", share)));
    const Json summary = train(o);
    CHECK(summary["updates"]["chunks"] == roomy.updated_chunks);
    CHECK(summary["deviations"] == 0);
    CHECK(fingerprint_run(o.run, {}) == expected);
    if (share == 1.0) CHECK(last_step_link_bytes(o.run) == 0);
    counts.insert(summary["updates"]["device"].get<std::uint64_t>());
  }
  CHECK(counts.size() >= 3);
  CHECK(*counts.begin() == 0);
  CHECK(*counts.rbegin() == roomy.updated_chunks);
}

TEST_CASE("A run goes on with another device memory, the choice made anew") {
  TempFolder folder;
  TrainOptions o = with_device(DeviceKind::cpu, 0, folder.path("cpu"));
  train(o);
  const std::string expected = fingerprint_run(o.run, {});
  const RunPlan roomy = Trainer(with_device(DeviceKind::emulated, 1 * GiB, folder.path("any")), {}).plan();
  const std::uint64_t least = roomy.least_device_bytes, most = roomy.budgets.device_bytes;
  std::vector<std::uint64_t> counts;
  for (const std::uint64_t memory : {most, least + (most - least) / 2, least, most}) {
    o = with_device(DeviceKind::emulated, memory, folder.path("run"));
    o.resume = !counts.empty();
    counts.push_back(train(o, memory != most || counts.empty())["updates"]["device"]);
  }
  CHECK(fingerprint_run(o.run, {}) == expected);
  CHECK((counts[0] > counts[1] && counts[1] > counts[2] && counts[2] < counts[3]));
}
