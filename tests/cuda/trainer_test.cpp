// `--device cuda` from settings to the store, over the stand-in: PyTorch's numbers, the same bits whatever the delays
// and budgets, a clean end of every failure.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "cuda/small_run.h"
#include "train/reference_case.h"

using namespace transload;
using namespace transload::testing;
using Catch::Matchers::Contains;

namespace {

stand_in::Settings device(std::uint64_t seed, int most_delay_us = 20) { return seeded_device(seed, most_delay_us); }

RunCase tiny(const std::string& model, std::uint64_t steps = 2) {
  RunCase c;
  c.model = model;
  c.device = DeviceKind::cuda;
  c.steps = steps;
  return c;
}

std::map<std::string, std::vector<float>> exported_weights(const std::string& run, const std::string& to) {
  export_run(run, to, {}, {});
  const SafetensorsReader reader = SafetensorsReader::open_folder(to);
  std::map<std::string, std::vector<float>> weights;
  for (const auto& [name, tensor] : reader.tensors()) {
    std::vector<float>& values = weights[name];
    values.resize(std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::uint64_t{1}, std::multiplies<>()));
    reader.read(tensor, 0, values.size(), values.data());
  }
  return weights;
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
  const Reference expected(name);
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const double loss = expected.losses[step], norm = expected.norms[step];
    CHECK(std::abs(summary["losses"][step].get<double>() - loss) <= 1e-6 * loss);
    CHECK(std::abs(summary["grad_norms"][step].get<double>() - norm) <= 5e-6 * norm);
  }
  require_weights(exported_weights(o.run, folder.path("weights")), expected);
  require_clean_device();
}

TEST_CASE("No delay of streams changes a bit") {
  const auto* name = GENERATE("gpt2", "llama");
  CAPTURE(name);
  TempFolder folder;
  const TrainOptions o = small_options(name, Recompute::layer, folder.path("run"));
  std::string first;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    begin(device(seed, static_cast<int>(seed % 4) * 15));
    train(o);
    const std::string fingerprint = fingerprint_run(o.run, {});
    if (first.empty()) first = fingerprint;
    REQUIRE(fingerprint == first);
    require_clean_device();
    std::filesystem::remove_all(o.run);
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

namespace {

/// Giving back has nobody to tell; a refused lock has a fall-back.
bool failure_is_an_error(const std::string& call) {
  return call.find("Destroy") == std::string::npos && call.find("Free") == std::string::npos &&
         call != "cudaHostAlloc" && call != "cudaHostRegister" && call != "cudaGetLastError";
}

/// What the error of a failed call says: the call, and the stream or block it was for.
void require_named(const std::string& call, const std::string& what) {
  CAPTURE(what);
  if (call == "cudaMalloc")
    CHECK_THAT(what, Contains("stand-in has") && Contains("asked for"));
  else if (call == "cudaLaunchKernel")
    CHECK_THAT(what, Contains("CUDA: launching"));
  else if (call != "cudaGetDeviceCount")
    CHECK_THAT(what, Contains(call));
  if (call == "cudaMemcpyAsync" || call == "cudaEventSynchronize" || call == "cudaEventRecord")
    CHECK_THAT(what, Contains("stream") || Contains("within the device"));
  if (call == "cudaMemcpyAsync" && what.find("compute stream") == std::string::npos &&
      what.find("(stream 0") == std::string::npos && what.find("within the device") == std::string::npos)
    CHECK_THAT(what, Contains("The copy of "));
}

struct Ended {
  bool failed = false;
  std::string what;
};

/// A run in which a call fails: it ends cleanly, and what it had committed is whole.
Ended train_until_the_fault(const TrainOptions& o) {
  Ended ended;
  try {
    train(o);
  } catch (const Error& e) {
    ended = {true, e.what()};
  }
  const stand_in::Live live = stand_in::live();
  REQUIRE((live.streams == 0 && live.events == 0 && live.device_bytes == 0 && live.pinned_bytes == 0));
  if (Store::exists(o.run + "/store")) REQUIRE(verify_run(o.run, {}).empty());
  std::filesystem::remove_all(o.run);
  return ended;
}

}  // namespace

TEST_CASE("A failing call of the runtime ends the run; the store is as last committed") {
  TempFolder folder;
  TrainOptions o = small_options("gpt2", Recompute::layer, folder.path("run"));
  o.commit_every.steps = 1;
  begin(device(1, 0));
  train(o);
  std::filesystem::remove_all(o.run);
  const auto calls = stand_in::calls();
  for (const auto& [name, count] : calls) {
    if (!failure_is_an_error(name) || name == "cudaMalloc") continue;
    for (const bool sticky : {false, true})
      for (const std::uint64_t nth : {std::uint64_t{1}, (count + 1) / 2, (3 * count + 3) / 4}) {
        CAPTURE(name, nth, count, sticky);
        begin(device(1, 0));
        stand_in::fail_call(name, nth, cudaErrorLaunchFailure, sticky);
        const Ended ended = train_until_the_fault(o);
        REQUIRE(ended.failed != stand_in::fault_waits());
        if (ended.failed && !sticky) require_named(name, ended.what);
      }
  }
}

TEST_CASE("Whichever piece of device memory is refused ends the run; locked host memory that is refused does not") {
  TempFolder folder;
  const TrainOptions o = small_options("llama", Recompute::layer, folder.path("run"));
  for (const std::string call : {"cudaMalloc", "cudaHostAlloc"}) {
    std::uint64_t nth = 1;
    for (;; ++nth) {
      CAPTURE(call, nth);
      begin(device(1, 0));
      stand_in::fail_call(call, nth, cudaErrorMemoryAllocation);
      const Ended ended = train_until_the_fault(o);
      const bool came = !stand_in::fault_waits();
      REQUIRE(ended.failed == (came && call == "cudaMalloc"));
      if (ended.failed) require_named(call, ended.what);
      if (!came) break;
    }
    REQUIRE(nth > 3);  // there were some
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
