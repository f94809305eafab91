// Whole runs for tests: a case names everything that must not change a bit; run_case trains it and gives the
// fingerprint of what it committed.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/size.h"
#include "train/checkpoint.h"
#include "train/temp_folder.h"
#include "train/trainer.h"

namespace transload::testing {

using Json = nlohmann::json;

struct RunCase {
  std::string model = "llama";  ///< of tests/reference
  double budget = 0;            ///< times the least accepted; 0: everything in memory
  DeviceKind device = DeviceKind::cpu;
  bool lru = false;
  std::uint64_t chunk = 64 * KiB;
  int threads = 1;
  IoPath io = IoPath::automatic;
  Recompute recompute = Recompute::layer;
  bool interrupted = false;  ///< and resumed, at every step
  Dtype dtype = Dtype::bf16;
  std::uint64_t steps = 6;

  std::string name() const {
    return fmt::format("{} budget {} {} {} chunk {} threads {} io {} recompute {} interrupted {} {}", model, budget,
                       transload::name_of(device), lru ? "lru" : "auto", chunk, threads, static_cast<int>(io),
                       static_cast<int>(recompute), interrupted, name_of(dtype));
  }
};

inline std::string reference(const std::string& model) { return TRANSLOAD_SOURCE_DIR "/tests/reference/" + model; }

inline TrainOptions options_of(const RunCase& c, const std::string& run) {
  TrainOptions o;
  o.model = reference(c.model);
  o.data = o.model + "/tokens.bin";
  o.run = run;
  o.shape = {.batch = 2, .length = 32, .accumulate = 2, .recompute = c.recompute};
  o.steps = c.steps;
  o.learning_rate = 1e-3;
  o.dtype = c.dtype;
  o.gradients = c.dtype;
  o.threads = c.threads;
  o.device = c.device;
  o.chunk_size = c.chunk;
  o.io = c.io;
  o.lru = c.lru;
  o.host_memory = 1 * GiB;
  if (c.device != DeviceKind::cpu) o.device_memory = 1 * GiB;
  return o;
}

/// Gives the case its budgets: a multiple of the least that the planner accepts.
inline void set_budget(TrainOptions& o, double times) {
  if (times == 0) return;
  const RunPlan plan = Trainer(o, {}).plan();
  const auto scaled = [&](std::uint64_t least) {
    return round_up(static_cast<std::uint64_t>(static_cast<double>(least) * times), plan.frame_bytes);
  };
  o.host_memory = scaled(plan.least_host_bytes);
  if (o.device != DeviceKind::cpu) o.device_memory = scaled(plan.least_device_bytes);
}

/// Trains until the end, or for one step.
inline Json train(const TrainOptions& o, bool one_step = false) {
  std::atomic<int> interrupt{0};
  Observer observer;
  if (one_step) observer.stepped = [&](const StepReport&) { interrupt = 1; };
  Trainer trainer(o, observer);
  return Json::parse(trainer.run(interrupt));
}

struct RunResult {
  std::string fingerprint;
  Json summary;  ///< of the last process's run
};

inline RunResult run_case(const RunCase& c) {
  TempFolder folder;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  RunResult result;
  if (!c.interrupted) {
    result.summary = train(o);
  } else {
    for (std::uint64_t step = 1; step <= c.steps; ++step) {
      o.resume = step > 1;
      result.summary = train(o, true);
      REQUIRE(result.summary["steps_seen"] == step);
    }
  }
  REQUIRE(verify_run(o.run, {}).empty());
  result.fingerprint = fingerprint_run(o.run, {});
  return result;
}

}  // namespace transload::testing
