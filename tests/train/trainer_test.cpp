// The trainer's own behaviour: schedules, commits and resume, bad input, non-finite steps, evaluation, export, record.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "train/loop.h"
#include "train/memory_limit.h"
#include "train/run_cases.h"
#include "train/run_folder.h"
#include "train/safetensors.h"

using namespace transload;
using namespace transload::testing;
using Catch::Matchers::Contains;

namespace fs = std::filesystem;

namespace {

/// What the constructor or the run says against these options; fails where they are accepted.
std::string refusal(const TrainOptions& o) {
  try {
    Trainer(o, {}).run(std::atomic<int>{0});
  } catch (const Error& error) {
    return error.what();
  }
  FAIL("accepted");
  return {};
}

TrainOptions small(const TempFolder& folder, std::uint64_t steps = 2) {
  return options_of({.steps = steps}, folder.path("run"));
}

}  // namespace

TEST_CASE("Learning rates: warmup, then constant, linear or cosine down to the minimum") {
  TrainOptions o;
  o.steps = 10;
  o.warmup_steps = 4;
  o.learning_rate = 1.0;
  o.min_learning_rate = 0.1;
  CHECK(learning_rate(o, 0) == 0.25);
  CHECK(learning_rate(o, 3) == 1.0);
  for (std::uint64_t s = 4; s < 12; ++s) CHECK(learning_rate(o, s) == 1.0);
  o.schedule = Schedule::linear;
  CHECK(learning_rate(o, 4) == 1.0);
  CHECK(learning_rate(o, 7) == Approx(0.55).epsilon(1e-12));
  CHECK(learning_rate(o, 10) == Approx(0.1).epsilon(1e-12));
  CHECK(learning_rate(o, 99) == Approx(0.1).epsilon(1e-12));
  o.schedule = Schedule::cosine;
  CHECK(learning_rate(o, 4) == 1.0);
  CHECK(learning_rate(o, 7) == Approx(0.55).epsilon(1e-12));
  CHECK(learning_rate(o, 5) == Approx(0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI / 6))).epsilon(1e-12));
  o.warmup_steps = 10;  // nothing is left for the schedule
  CHECK(learning_rate(o, 10) == 1.0);
}

TEST_CASE("A run leaves its settings, its record, its summary and a store that verifies") {
  TempFolder folder;
  const TrainOptions o = small(folder, 3);
  const Json summary = train(o);
  CHECK(summary["steps"] == 3);
  CHECK(summary["losses"].size() == 3);
  CHECK(summary["grad_norms"].size() == 3);
  CHECK(summary["interrupted"] == false);
  CHECK(summary["deviations"] == 0);
  CHECK(summary["step_s_median"].get<double>() > 0);
  CHECK(summary == Json::parse(read_whole(o.run + "/summary.json")));
  CHECK_THAT(read_whole(o.run + "/config.toml"),
             Contains("sequence-length = 32") && Contains("host-memory = \"1GiB\""));
  std::ifstream record(o.run + "/record.jsonl");
  std::map<std::string, int> events;
  for (std::string line; std::getline(record, line);) ++events[Json::parse(line)["event"]];
  CHECK(events["run"] == 1);
  CHECK(events["step"] == 3);
  CHECK(events["end"] == 1);
  CHECK(events["access"] > 0);
  CHECK(verify_run(o.run, {}).empty());
  const CheckpointMeta meta = parse_meta(Store::read_manifest(store_folder(o.run)).metadata, "test");
  CHECK(meta.step == 3);
  CHECK(meta.steps_seen == 3);
  CHECK(meta.samples_seen == 12);
}

TEST_CASE("Losses follow PyTorch in float64", "[reference]") {
  const std::string model = GENERATE("gpt2", "llama", "qwen2");
  TempFolder folder;
  TrainOptions o = options_of({.model = model, .budget = 1, .dtype = Dtype::f32, .steps = 5}, folder.path("run"));
  o.shape.accumulate = 1;
  o.order = Order::sequential;
  set_budget(o, 1);
  const Json summary = train(o);
  const Json expected = Json::parse(read_whole(reference(model) + "/expected.json"));
  for (std::size_t s = 0; s < 5; ++s) {
    CAPTURE(model, s);
    // fp32 against fp64 over a few hundred terms a loss, growing with the steps between.
    CHECK(std::abs(summary["losses"][s].get<double>() - expected["losses"][s].get<double>()) <= 2e-5);
    CHECK(std::abs(summary["grad_norms"][s].get<double>() - expected["grad_norms"][s].get<double>()) <= 1e-4);
  }
}

TEST_CASE("Accumulation gives the loss and norm of the larger batch") {
  TempFolder folder;
  TrainOptions o = options_of({.dtype = Dtype::f32, .steps = 1}, folder.path("a"));
  o.shape.batch = 4;
  o.shape.accumulate = 1;
  const Json whole = train(o);
  o.run = folder.path("b");
  o.shape.batch = 1;
  o.shape.accumulate = 4;
  const Json parts = train(o);
  CHECK(std::abs(whole["losses"][0].get<double>() - parts["losses"][0].get<double>()) <= 1e-6);
  CHECK(std::abs(whole["grad_norms"][0].get<double>() / parts["grad_norms"][0].get<double>() - 1) <= 1e-5);
}

TEST_CASE("Commits come every N steps, and a run goes on from the last") {
  TempFolder folder;
  TrainOptions o = small(folder, 5);
  o.commit_every = {.steps = 2, .seconds = 0};
  std::vector<std::uint64_t> commits;
  Observer observer;
  observer.committed = [&](std::uint64_t step, double) { commits.push_back(step); };
  Trainer(o, observer).run(std::atomic<int>{0});
  CHECK(commits == std::vector<std::uint64_t>{2, 4, 5});
}

TEST_CASE("A run that is over has nothing left to do when it is resumed; more steps go on") {
  TempFolder folder;
  TrainOptions o = small(folder, 2);
  train(o);
  const std::string before = fingerprint_run(o.run, {});
  o.resume = true;
  const Json again = train(o);
  CHECK(again["steps"] == 0);
  CHECK(fingerprint_run(o.run, {}) == before);
  o.steps = 3;
  CHECK(train(o)["steps"] == 1);
  CHECK(fingerprint_run(o.run, {}) != before);
}

TEST_CASE("Resuming with other budgets, devices and learning rates is allowed, and what differs is said") {
  TempFolder folder;
  TrainOptions o = small(folder, 2);
  train(o);
  o.resume = true;
  o.steps = 3;
  o.chunk_size = 0;  // the store's
  o.device = DeviceKind::emulated;
  o.device_memory = 512 * MiB;
  o.learning_rate = 5e-4;
  o.shape.accumulate = 1;  // another set of transient planes: blocks are found by plane and chunk
  Trainer trainer(o, {});
  CHECK(trainer.plan().chunk_size == 64 * KiB);
  std::string notes;
  for (const std::string& note : trainer.plan().notes) notes += note + "\n";
  CHECK_THAT(notes, Contains("--learning-rate is 0.0005 from here on; it was 0.001.") && Contains("--accumulate"));
  CHECK(Json::parse(trainer.run(std::atomic<int>{0}))["steps"] == 1);
}

TEST_CASE("Resuming with another model, data, seed, shape or chunk size is refused, saying what differs") {
  TempFolder folder;
  const TrainOptions o = small(folder, 2);
  train(o);
  TrainOptions other = o;
  other.resume = true;
  other.steps = 4;
  SECTION("model") {
    other.model = reference("qwen2");
    CHECK_THAT(refusal(other), Contains("the model") && Contains("model_type"));
  }
  SECTION("dtype") {
    other.dtype = Dtype::f32;
    CHECK_THAT(refusal(other), Contains("--dtype") && Contains("fp32 instead of bf16"));
  }
  SECTION("data") {
    std::string ids = read_whole(o.data);
    ids[8] = static_cast<char>(ids[8] ^ 1);
    other.data = folder.write("other.bin", ids);
    CHECK_THAT(refusal(other), Contains("--data"));
  }
  SECTION("seed") {
    other.seed = 2;
    CHECK_THAT(refusal(other), Contains("--seed") && Contains("2 instead of 1"));
  }
  SECTION("sequence length") {
    other.shape.length = 16;
    CHECK_THAT(refusal(other), Contains("--sequence-length") && Contains("16 instead of 32"));
  }
  SECTION("frozen parameters") {
    other.freeze = {"model.embed_tokens.weight"};
    CHECK_THAT(refusal(other), Contains("model.embed_tokens.weight") && Contains("frozen"));
  }
  CHECK(verify_run(o.run, {}).empty());
}

TEST_CASE("A run goes on with another chunk size, in a new store, and changes no bit") {
  TempFolder folder;
  TrainOptions o = small(folder, 4);
  train(o);
  const std::string want = fingerprint_run(o.run, {});
  o.run = folder.path("changed");
  for (const std::uint64_t chunk : {64 * KiB, 16 * KiB, 128 * KiB, 128 * KiB}) {
    o.chunk_size = chunk;
    const Json summary = train(o, true);
    CHECK(summary["chunk_size"] == chunk);
    CHECK(verify_run(o.run, {}).empty());
    o.resume = true;
  }
  CHECK(fingerprint_run(o.run, {}) == want);
  CHECK(fs::exists(o.run + "/store-g2-r0"));
  CHECK_FALSE(fs::exists(o.run + "/store"));
  CHECK_FALSE(fs::exists(o.run + "/store-g1-r0"));
}

TEST_CASE("A run folder with a store is not begun again, one without is not resumed") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.resume = true;
  CHECK_THAT(refusal(o), Contains("there is no store"));
  CHECK_FALSE(fs::exists(o.run));
  o.resume = false;
  train(o);
  const std::string before = fingerprint_run(o.run, {});
  CHECK_THAT(refusal(o), Contains("holds a store already") && Contains("--resume"));
  CHECK(fingerprint_run(o.run, {}) == before);
}

TEST_CASE("A run folder in use by a living process is refused") {
  TempFolder folder;
  const TrainOptions o = small(folder, 1);
  const RunFolder held(o.run);
  CHECK_THAT(refusal(o), Contains("in use by process " + std::to_string(::getpid())));
}

TEST_CASE("A run folder that is a file, an NVMe folder that is missing or a file") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.run = folder.write("file", "x");
  CHECK_THAT(refusal(o), Contains("is not a folder"));
  o = small(folder, 1);
  o.nvme = folder.path("missing");
  CHECK_THAT(refusal(o), Contains("does not exist"));
  o.nvme = folder.path("file");
  CHECK_THAT(refusal(o), Contains("is not a folder"));
  CHECK_FALSE(fs::exists(o.run));
}

TEST_CASE("A store below --nvme is linked from the run folder and found again") {
  TempFolder folder;
  TrainOptions o = small(folder, 2);
  fs::create_directory(folder.path("drive"));
  fs::create_directory(folder.path("other"));
  o.nvme = folder.path("drive");
  train(o, true);
  CHECK(fs::is_symlink(o.run + "/store"));
  CHECK(verify_run(o.run, {}).empty());
  o.resume = true;
  o.nvme = folder.path("other");
  CHECK_THAT(refusal(o), Contains("lies in") && Contains("Leave --nvme out"));
  o.nvme.clear();
  CHECK(train(o)["steps"] == 1);
}

TEST_CASE("A budget that is too small: needed, given, what would make it fit") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.host_memory = 1 * GiB;
  const RunPlan plan = Trainer(o, {}).plan();
  o.host_memory = plan.least_host_bytes - 1;
  try {
    Trainer trainer(o, {});
    FAIL("accepted");
  } catch (const BudgetError& error) {
    CHECK(error.needed_bytes == plan.least_host_bytes);
    CHECK(error.given_bytes == o.host_memory);
    CHECK_THAT(error.what(), Contains("It would fit with --host-memory") && Contains("--chunk-size 32KiB"));
  }
  o.host_memory = plan.least_host_bytes;
  CHECK(train(o)["steps"] == 1);
}

TEST_CASE("A device that is too small is refused as the host's is") {
  TempFolder folder;
  TrainOptions o = options_of({.device = DeviceKind::emulated, .steps = 1}, folder.path("run"));
  const RunPlan plan = Trainer(o, {}).plan();
  o.device_memory = plan.least_device_bytes - 1;
  CHECK_THAT(refusal(o), Contains("of device memory") && Contains("--device-memory"));
  o.device_memory = plan.least_device_bytes;
  o.host_memory = plan.least_host_bytes;
  CHECK(train(o)["steps"] == 1);
}

TEST_CASE("The chunk size is searched for where it is left open, and the budget of every choice holds") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.chunk_size = 0;
  Trainer trainer(o, {});
  CHECK(trainer.options().chunk_size == trainer.plan().chunk_size);
  CHECK(trainer.plan().chunk_size >= 256 * KiB);
  CHECK(trainer.plan().least_host_bytes <= o.host_memory);
  o.host_memory = 64 * KiB;
  CHECK_THAT(refusal(o), Contains("It would fit with --host-memory"));
}

TEST_CASE("A store larger than its capacity is refused before anything is written") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  const std::uint64_t needed = Trainer(o, {}).plan().store_bytes;
  o.nvme_capacity = needed - 1;
  CHECK_THAT(refusal(o), Contains("--nvme-capacity"));
  CHECK_FALSE(fs::exists(o.run));
  o.nvme_capacity = needed;
  CHECK(train(o)["steps"] == 1);
}

TEST_CASE("A store larger than its drive is planned and said, and refused before anything is written") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.model = "llama-7b";
  o.data = folder.write("text.txt", std::string(5000, 'a'));
  o.chunk_size = 64 * MiB;
  o.host_memory = 8 * GiB;
  const Trainer planned(o, {});
  const std::uint64_t needed = planned.plan().store_bytes;
  if (space_at(folder.path()).free_bytes >= needed) {
    WARN("skipped: the drive has room for " << format_size(needed));
    return;
  }
  std::string notes;
  for (const std::string& note : planned.plan().notes) notes += note;
  CHECK_THAT(notes, Contains("Make room"));
  CHECK_THAT(refusal(o), Contains(format_size(needed)) && Contains("Make room"));
  CHECK_FALSE(fs::exists(o.run));
}

TEST_CASE("Without a store a run trains in memory and says that it cannot be resumed") {
  TempFolder folder;
  TrainOptions o = small(folder, 3);
  train(o);
  TrainOptions none = o;
  none.run = folder.path("none");
  none.nvme_capacity = 0;
  Trainer trainer(none, {});
  CHECK_THAT(trainer.plan().notes.back(), Contains("cannot be resumed"));
  const Json summary = Json::parse(trainer.run(std::atomic<int>{0}));
  CHECK(summary["losses"] == Json::parse(read_whole(o.run + "/summary.json"))["losses"]);
  CHECK_FALSE(fs::exists(none.run + "/store"));
  none.resume = true;
  CHECK_THAT(refusal(none), Contains("--nvme-capacity 0"));
}

TEST_CASE("Without durability a run ends whole, and can be resumed after a clean end") {
  TempFolder folder;
  TrainOptions o = small(folder, 4);
  train(o);
  const std::string expected = fingerprint_run(o.run, {});
  o.run = folder.path("none");
  o.durable = false;
  set_budget(o, 1);
  train(o, true);
  o.resume = true;
  train(o);
  CHECK(fingerprint_run(o.run, {}) == expected);
}

TEST_CASE("Data shorter than a sample and ids beyond the vocabulary are refused before training") {
  TempFolder folder;
  TrainOptions o = small(folder, 1);
  o.data = folder.write("short.bin", std::string(2 * 32, '\0'));
  CHECK_THAT(refusal(o), Contains("32") && Contains("33"));
  std::string ids(2 * 400, '\0');
  ids[2 * 399 + 1] = 7;  // 1792
  o.data = folder.write("beyond.bin", ids);
  CHECK_THAT(refusal(o), Contains("399") && Contains("1792"));
  CHECK_FALSE(fs::exists(o.run));
}

TEST_CASE("Settings out of range are refused by name") {
  TempFolder folder;
  const TrainOptions good = small(folder, 1);
  const auto refused = [&](auto&& change) {
    TrainOptions o = good;
    change(o);
    return refusal(o);
  };
  CHECK_THAT(refused([](TrainOptions& o) { o.steps = 0; }), Contains("--steps"));
  CHECK_THAT(refused([](TrainOptions& o) { o.shape.batch = 0; }), Contains("--batch-size"));
  CHECK_THAT(refused([](TrainOptions& o) { o.shape.length = 0; }), Contains("--sequence-length"));
  CHECK_THAT(refused([](TrainOptions& o) { o.shape.accumulate = -1; }), Contains("--accumulate"));
  CHECK_THAT(refused([](TrainOptions& o) { o.learning_rate = NAN; }), Contains("--learning-rate"));
  CHECK_THAT(refused([](TrainOptions& o) { o.min_learning_rate = 1; }), Contains("--min-learning-rate"));
  CHECK_THAT(refused([](TrainOptions& o) { o.beta2 = 1; }), Contains("--betas"));
  CHECK_THAT(refused([](TrainOptions& o) { o.epsilon = 0; }), Contains("--epsilon"));
  CHECK_THAT(refused([](TrainOptions& o) { o.evaluate_every = 1; }), Contains("--validation"));
  CHECK_THAT(refused([](TrainOptions& o) { o.device_memory = GiB; }), Contains("--device emulated"));
  CHECK_THAT(refused([](TrainOptions& o) { o.freeze = {"*"}; }), Contains("--freeze"));
  CHECK_THAT(refused([](TrainOptions& o) { o.run.clear(); }), Contains("--run"));
  CHECK_THAT(refused([](TrainOptions& o) { o.model = "lama-60m"; }), Contains("llama-60m"));
}

TEST_CASE("Steps that are not finite change nothing; ten in a row stop the run") {
  TempFolder folder;
  TrainOptions o = small(folder, 30);
  o.learning_rate = 1e30;  // the first update overflows the weights, every later gradient is not finite
  o.weight_decay = 0;
  o.commit_every = {.steps = 1, .seconds = 0};
  std::vector<bool> skipped;
  Observer observer;
  observer.stepped = [&](const StepReport& s) { skipped.push_back(s.skipped); };
  CHECK_THROWS_WITH(Trainer(o, observer).run(std::atomic<int>{0}), Contains("10 steps in a row"));
  const auto first = std::find(skipped.begin(), skipped.end(), true) - skipped.begin();
  REQUIRE(skipped.size() == static_cast<std::size_t>(first) + 10);
  const CheckpointMeta meta = parse_meta(Store::read_manifest(store_folder(o.run)).metadata, "test");
  CHECK(meta.step == static_cast<std::uint64_t>(first));
  CHECK(meta.steps_seen == skipped.size());
  CHECK(verify_run(o.run, {}).empty());
}

TEST_CASE("Evaluation between steps leaves training's bits alone") {
  TempFolder folder;
  TrainOptions o = small(folder, 4);
  train(o);
  const std::string expected = fingerprint_run(o.run, {});
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated}) {
    o.run = folder.path(device == DeviceKind::cpu ? "cpu" : "emulated");
    o.device = device;
    o.validation = o.data;
    o.evaluate_every = 1;
    o.host_memory = 1 * GiB;
    o.device_memory = device == DeviceKind::cpu ? 0 : 1 * GiB;
    set_budget(o, 1);
    const Json summary = train(o);
    CHECK(summary["evaluations"].size() == 4);
    CHECK(summary["deviations"] == 0);
    CHECK(summary["evaluations"][3]["loss"].get<double>() < summary["evaluations"][0]["loss"].get<double>());
    CHECK(fingerprint_run(o.run, {}) == expected);
  }
}

TEST_CASE("A run exports whole model folders as it goes") {
  TempFolder folder;
  TrainOptions o = small(folder, 4);
  o.export_every = 2;
  train(o);
  for (const char* name : {"export-000002", "export-000004"}) {
    CAPTURE(name);
    const std::string exported = o.run + "/" + name;
    CHECK(fs::exists(exported + "/config.json"));
    CHECK(SafetensorsReader::open_folder(exported).tensors().size() ==
          SafetensorsReader::open_folder(o.model).tensors().size());
  }
  CHECK_FALSE(fs::exists(o.run + "/export-000002.tmp"));
}

TEST_CASE("A built-in name on text begins from scratch with bytes") {
  TempFolder folder;
  TrainOptions o;
  o.model = "llama-60m";
  o.data = folder.write("text.txt", std::string(5000, 'a'));
  o.shape = {.batch = 1, .length = 16, .accumulate = 1};
  o.host_memory = 4 * GiB;
  const Trainer trainer(o, {});  // no --run: planned only
  CHECK(trainer.plan().config.vocab == 256);
  CHECK_THAT(trainer.plan().notes.front(), Contains("256"));
  CHECK(trainer.options().chunk_size >= 256 * KiB);
}

TEST_CASE("Limits of memory: the machine's, and every control group's above the process") {
  TempFolder root;
  const auto put = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(root.path(name)).parent_path());
    root.write(name, text);
  };
  put("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n");
  SECTION("no groups") {
    const MemoryLimit limit = memory_limit_of(root.path());
    CHECK(limit.total_bytes == 8 * GiB);
    CHECK(limit.available_bytes == 4 * GiB);
    CHECK(limit.reserve_bytes == 512 * MiB);
    CHECK(limit.source == "machine");
  }
  SECTION("version 2, a parent's limit; cache that can be given back is free") {
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/memory.max", "2147483648\n");
    put("sys/fs/cgroup/a/memory.current", "1073741824\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 536870912\n");
    const MemoryLimit limit = memory_limit_of(root.path());
    CHECK(limit.total_bytes == 2 * GiB);
    CHECK(limit.available_bytes == 2 * GiB - 512 * MiB);
    CHECK(limit.source == "cgroup /a");
  }
  SECTION("version 1, as a container sees it: its path is not there, the mount's root is its own") {
    put("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/docker/1\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n");
    const MemoryLimit limit = memory_limit_of(root.path());
    CHECK(limit.total_bytes == 1 * GiB);
    CHECK(limit.available_bytes == 0);
    CHECK(limit.reserve_bytes == 0);
  }
}
