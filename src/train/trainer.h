// Trainer: everything between resolved settings and a trained store, in one process: model, data, layout, dry run,
// budgets, plan, engine, loop, commits, resume, evaluation, record. The command line only parses, prints and signals.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/trace_types.h"
#include "chunk/layout.h"
#include "comm/communicator.h"
#include "engine/engine.h"
#include "offload/store.h"
#include "train/data.h"
#include "train/model_config.h"
#include "train/transformer.h"

namespace transload {

enum class DeviceKind : std::uint8_t { cpu, emulated, cuda };
const char* name_of(DeviceKind kind);
enum class Schedule : std::uint8_t { constant, linear, cosine };

struct CommitEvery {
  std::uint64_t steps = 0;  ///< every N steps, or
  double seconds = 300;     ///< by time when steps == 0
};

/// Every setting as resolved; flags and TOML keys have the same names (docs/formats.md).
struct TrainOptions {
  std::string model;  ///< folder or built-in name
  std::string data, validation;
  bool bytes = false;
  std::string run;  ///< run folder
  bool resume = false;

  Order order = Order::shuffled;
  StepShape shape{.batch = 4, .length = 256, .accumulate = 1, .recompute = Recompute::layer};
  std::uint64_t steps = 100, evaluate_every = 0, warmup_steps = 0;
  double learning_rate = 3e-4, min_learning_rate = 0, weight_decay = 0.1, clip_norm = 1.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  Schedule schedule = Schedule::constant;
  Dtype dtype = Dtype::bf16, gradients = Dtype::bf16;
  std::uint64_t seed = 1;
  std::vector<std::string> freeze;
  std::uint64_t global_batch = 0;  ///< samples of a step on all ranks; 0: batch × accumulate on each
  Shards shards;                   ///< this rank, of how many
  std::uint32_t ranks_here = 1;    ///< that share this machine's memory
  Tier comm_tier = Tier::host;     ///< where collectives work
  std::string transport;           ///< in words
  std::uint64_t comm_bytes = 0;    ///< of the ranks' buffers there; taken out of that tier's budget
  double timeout_s = 60;           ///< after which a silent rank is lost
  Reduction reduction = Reduction::tree;
  int threads = 0;  ///< 0: all the process may use

  DeviceKind device = DeviceKind::cpu;
  std::uint64_t device_memory = 0,
                host_memory = 0;             ///< bytes; 0: default (what is left less a reserve; emulated: host / 4)
  double link_rate = 0;                      ///< bytes/s, 0: unlimited
  std::string nvme;                          ///< folder; empty: the run folder
  std::uint64_t nvme_capacity = UINT64_MAX;  ///< 0: no store
  IoPath io = IoPath::automatic;
  std::uint64_t chunk_size = 0;  ///< 0: by search (or the store's on resume)
  bool lru = false;
  CommitEvery commit_every;
  bool durable = true;
  std::uint64_t export_every = 0;
  bool record_events = true;  ///< false: to measure what recording costs; no flag, no key
};

/// What a run is about to do; made without taking memory. The texts of `transload plan` and of the start come from it.
struct RunPlan {
  ModelConfig config;
  std::uint64_t parameters = 0, trainable = 0, chunk_size = 0, chunks = 0, frame_bytes = 0;
  std::uint64_t updated_chunks = 0, device_updates = 0;  ///< all that are trained; of them updated on the device
  std::uint64_t durable_bytes = 0, transient_bytes = 0, workspace_bytes = 0;
  std::uint64_t least_host_bytes = 0, least_device_bytes = 0;
  Budgets budgets;
  Plan plan;
  std::uint64_t store_bytes = 0;  ///< on disk, second slots included
  std::vector<std::string> notes;
  /// Bytes by plane: name, durable, total bytes, predicted bytes resident in host and device at the step's end.
  struct PlaneRow {
    std::string plane;
    bool durable;
    std::uint64_t bytes;
    std::uint64_t device_bytes = 0, host_bytes = 0;
  };
  std::vector<PlaneRow> planes;
};

/// What happened in one step, for progress and records.
struct StepReport {
  std::uint64_t step = 0;  ///< 1-based
  std::uint64_t steps = 0;
  double loss = 0, norm = 0, seconds = 0, lr = 0;
  bool skipped = false;  ///< gradients not finite
  std::uint64_t tokens = 0;
  std::uint64_t link_bytes[kLinks] = {};  ///< this step
  std::uint64_t resident_bytes = 0;
  double fraction_of_limit = 0;  ///< lower bound / seconds; 0: not known yet
};

struct Observer {
  std::function<void(const std::string&)> say;  ///< one plain line
  std::function<void(const RunPlan&)> planned;
  std::function<void(const std::string& what, std::uint64_t done, std::uint64_t total)> progress;
  std::function<void(const StepReport&)> stepped;
  std::function<void(std::uint64_t step, double loss)> evaluated;
  std::function<void(std::uint64_t step, double seconds)> committed;
};

class Trainer {
 public:
  /// Checks input, plans; takes no memory yet. BudgetError: needed, given, what would make it fit. `communicator`: of
  /// the ranks that train together, all of which construct and run a trainer with the same settings; it outlives the
  /// trainer. Null: this process alone.
  Trainer(TrainOptions options, Observer observer, Communicator* communicator = nullptr);
  ~Trainer();
  const RunPlan& plan() const;
  const TrainOptions& options() const;  ///< with defaults resolved

  /// Takes memory, makes or opens the store, trains. `interrupt` > 0: finish the step, commit, return.
  /// Returns summary.json's text, also written to the run folder. Exit is clean in every case: the store is as last
  /// committed.
  std::string run(const std::atomic<int>& interrupt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes that this process may still take: of the machine or its container, less a reserve (said in the text).
struct MemoryLimit {
  std::uint64_t total_bytes = 0, available_bytes = 0, reserve_bytes = 0;
  std::string source;  ///< "machine" | "cgroup /…"
};
MemoryLimit memory_limit();
std::uint64_t resident_bytes();       ///< now, as the kernel counts (VmRSS)
std::uint64_t peak_resident_bytes();  ///< VmHWM

}  // namespace transload
