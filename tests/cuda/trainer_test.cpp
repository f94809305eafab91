// `--device cuda` from settings to the store, over the stand-in: PyTorch's numbers, the same bits whatever the delays
// and budgets, a clean end of every failure.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "runtime.h"
#include "train/cuda/cuda_accelerator.h"
#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;
using Catch::Matchers::Contains;

namespace {

stand_in::Settings device(std::uint64_t seed, int most_delay_us = 20) {
  stand_in::Settings settings;
  settings.device_bytes = 2 * GiB;
  settings.seed = seed;
  settings.most_delay_us = most_delay_us;
  return settings;
}

void begin(const stand_in::Settings& settings) {
  stand_in::reset(settings);
  cuda::announce();
}

RunCase tiny(const std::string& model, std::uint64_t steps = 2) {
  RunCase c;
  c.model = model;
  c.device = DeviceKind::cuda;
  c.steps = steps;
  return c;
}

void require_clean_device() {
  CHECK(stand_in::failure().empty());
  CHECK(stand_in::without_stream() == 0);
  const stand_in::Live live = stand_in::live();
  CHECK((live.streams == 0 && live.events == 0 && live.device_bytes == 0 && live.pinned_bytes == 0));
}

}  // namespace

TEST_CASE("Five fp32 steps on the device are PyTorch's") {
  const auto* name = GENERATE("gpt2", "llama", "qwen2");
  CAPTURE(name);
  begin(device(1, 0));
  TempFolder folder;
  TrainOptions o = options_of(tiny(name, 5), folder.path("run"));
  o.dtype = o.gradients = Dtype::f32;
  o.shape.accumulate = 1;
  o.order = Order::sequential;
  const Json summary = train(o);
  const Json expected = Json::parse(std::ifstream(reference(name) + "/expected.json"));
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const double loss = expected["losses"][step], norm = expected["grad_norms"][step];
    CHECK(std::abs(summary["losses"][step].get<double>() - loss) <= 1e-6 * loss);
    CHECK(std::abs(summary["grad_norms"][step].get<double>() - norm) <= 5e-6 * norm);
  }
  require_clean_device();
}

TEST_CASE("No delay of streams changes a bit") {
  const auto* name = GENERATE("gpt2", "llama");
  CAPTURE(name);
  std::string first;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    begin(device(seed, static_cast<int>(seed % 4) * 15));
    const std::string fingerprint = run_case(tiny(name, 1)).fingerprint;
    if (first.empty()) first = fingerprint;
    REQUIRE(fingerprint == first);
    require_clean_device();
  }
}

TEST_CASE("No budget, chunk size or interruption changes a bit") {
  RunCase c = tiny("llama", 3);
  begin(device(1));
  const std::string want = run_case(c).fingerprint;
  for (const double budget : {1.0, 3.0}) {
    for (const std::uint64_t chunk : {16 * KiB, 64 * KiB}) {
      c.budget = budget;
      c.chunk = chunk;
      c.recompute = budget == 1.0 ? Recompute::layer : Recompute::none;
      CAPTURE(c.name());
      begin(device(2));
      REQUIRE(run_case(c).fingerprint == want);
      require_clean_device();
    }
  }
  c.interrupted = true;
  begin(device(3));
  REQUIRE(run_case(c).fingerprint == want);
}

TEST_CASE("However many chunks the GPU updates, the bits are the same") {
  TempFolder folder;
  RunCase c = tiny("llama", 2);
  c.chunk = 16 * KiB;
  begin(device(1));
  const RunPlan roomy = Trainer(options_of(c, folder.path("any")), {}).plan();
  const std::uint64_t least = roomy.least_device_bytes, most = roomy.budgets.device_bytes;
  std::string first;
  std::set<std::uint64_t> counts;
  for (const std::uint64_t memory : {least, least + (most - least) / 2, most}) {
    CAPTURE(memory, least, most);
    begin(device(2));
    TrainOptions o = options_of(c, folder.path(fmt::format("run{}", counts.size())));
    o.device_memory = memory;
    const Json summary = train(o);
    counts.insert(summary["updates"]["device"].get<std::uint64_t>());
    const std::string fingerprint = fingerprint_run(o.run, {});
    if (first.empty()) first = fingerprint;
    REQUIRE(fingerprint == first);
    require_clean_device();
  }
  CHECK(*counts.begin() == 0);
  CHECK(*counts.rbegin() == roomy.updated_chunks);
  CHECK(counts.size() == 3);
}

TEST_CASE("A failing call of the runtime ends the run; the store is as last committed") {
  RunCase c = tiny("gpt2", 3);
  c.budget = 1;
  begin(device(1, 0));
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("whole"));
  set_budget(o, c.budget);
  o.commit_every.steps = 1;
  stand_in::reset(device(1, 0));
  train(o);
  const auto calls = stand_in::calls();
  int at = 0;
  for (const auto& [name, count] : calls) {
    // Giving back has nobody to tell; a refused lock has a fall-back.
    if (name.find("Destroy") != std::string::npos || name.find("Free") != std::string::npos ||
        name == "cudaHostAlloc" || name == "cudaGetLastError")
      continue;
    for (const std::uint64_t nth : {std::uint64_t{1}, (count + 1) / 2, (3 * count + 3) / 4}) {
      CAPTURE(name, nth, count);
      stand_in::reset(device(1, 0));
      stand_in::fail_call(name, nth, name == "cudaMalloc" ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure,
                          name != "cudaMalloc");
      o.run = folder.path(fmt::format("failed{}", at++));
      bool failed = false;
      try {
        train(o);
      } catch (const Error&) {
        failed = true;
      }
      REQUIRE(failed != stand_in::fault_waits());
      const stand_in::Live live = stand_in::live();
      REQUIRE((live.streams == 0 && live.events == 0 && live.device_bytes == 0 && live.pinned_bytes == 0));
      if (Store::exists(o.run + "/store")) REQUIRE(verify_run(o.run, {}).empty());
      std::filesystem::remove_all(o.run);
    }
  }
}

TEST_CASE("Without a driver, and with too little memory, one sentence says so before training") {
  TempFolder folder;
  TrainOptions o = options_of(tiny("llama"), folder.path("run"));
  stand_in::Settings settings = device(1);
  settings.devices = -1;
  begin(settings);
  REQUIRE_THROWS_WITH(Trainer(o, {}), Contains("no GPU can be used here") && Contains("--device cpu"));
  settings.devices = 1;
  settings.device_bytes = 512 * MiB;
  begin(settings);
  REQUIRE_THROWS_WITH(Trainer(o, {}), Contains("--device-memory gives 1.00 GiB") && Contains("512.0 MiB free"));
  o.device_memory = 1 * MiB;
  REQUIRE_THROWS_WITH(Trainer(o, {}), Contains("of device memory"));
  o.device_memory = 0;
  REQUIRE(Trainer(o, {}).options().device_memory == 384 * MiB);
}

TEST_CASE("The record says which GPU, and whether memory was locked; chosen algorithms are kept") {
  TempFolder folder;
  stand_in::Settings settings = device(1);
  settings.pinned_bytes = 0;
  begin(settings);
  TrainOptions o = options_of(tiny("llama", 1), folder.path("run"));
  train(o);
  std::ifstream record(o.run + "/record.jsonl");
  std::string line;
  REQUIRE(std::getline(record, line));
  const Json gpu = Json::parse(line)["gpu"];
  REQUIRE(gpu["name"] == "stand-in, sm_90");
  REQUIRE(gpu["pinned"] == false);
  REQUIRE(gpu["pinned_reason"].get<std::string>().find("page-locked") != std::string::npos);
  REQUIRE(std::filesystem::exists(o.run + "/products.json"));

  o.resume = true;
  std::string said;
  const auto resume = [&] {
    said.clear();
    o.steps += 1;
    Observer observer;
    observer.say = [&](const std::string& text) { said += text; };
    Trainer(o, observer).run(std::atomic<int>{0});
  };
  resume();
  REQUIRE_THAT(said, !Contains("bits of later steps may differ"));
  std::filesystem::remove(o.run + "/products.json");
  resume();
  REQUIRE_THAT(said, Contains("bits of later steps may differ"));
}
