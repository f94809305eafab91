// From settings to a plan, without taking memory: layout, dry run, least budgets, chunk size, plan, store.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "plan/planner.h"
#include "train/accelerator.h"
#include "train/commit_cycle.h"
#include "train/trainer.h"

namespace transload {

/// What a model and a chunk size make: everything the loop needs to run a step, and the traces of its steps.
struct StepCode {
  std::unique_ptr<Layout> layout;
  std::unique_ptr<Transformer> transformer;
  std::vector<BlockSpec> blocks;     ///< the layout's, then the transformer's kept blocks
  std::vector<Tier> update_tiers;    ///< by chunk
  std::uint64_t device_updates = 0;  ///< chunks of them on the device
  std::vector<GatherPlan> gathers;   ///< by Optimizer::Pass; empty for one rank
  Trace step;                        ///< with the updates that the step before left pending
  Trace fresh_step;                  ///< without: the first step, and the one after a commit or an evaluation
  Trace flush;                       ///< the pending updates alone, and what comes to the host, as for a commit
  Trace evaluation;                  ///< one micro-batch, nothing pending
  Trace setup;                       ///< initial weights
};
std::vector<PlaneSpec> planes_for(const ModelConfig& config, const TrainOptions& options);
/// All updates on the host, room for one gathered chunk.
StepCode make_step_code(const ModelConfig& config, const TrainOptions& options, std::uint64_t chunk_bytes,
                        Accelerator* accelerator);
/// The first `count` chunks that are updated are updated on the device: traces anew.
void set_device_updates(StepCode& code, const TrainOptions& options, std::uint64_t count);
/// Of several ranks: gathers are planned for `room` chunks at once; traces anew.
void set_gather_room(StepCode& code, const TrainOptions& options, std::size_t room);

/// The tier that computes.
Tier compute_tier(const TrainOptions& options);

struct Prepared {
  StepCode code;
  RunPlan plan;                               ///< its budgets: what is taken of those given
  std::uint64_t in_flight_bytes[2] = {0, 0};  ///< device, host: room for transfers on their way
  std::uint64_t used_bytes[2] = {0, 0};       ///< device, host: the most that blocks and workspace will take
  CommitCycle cycle;
  std::vector<SlotClass> slots;  ///< the store's; empty without one
};

/// Fills in the memory that is left to us: this rank's part of what is free. `accelerator`: of --device cuda.
void resolve_memory(TrainOptions& options, const Accelerator* accelerator, std::vector<std::string>& notes);

/// `fixed_chunk_bytes`: a store's, or what the user asked for; 0: by search. Memory is resolved. BudgetError where a
/// budget is too small.
Prepared prepare(TrainOptions& options, const ModelConfig& config, std::uint64_t fixed_chunk_bytes,
                 Accelerator* accelerator);

/// The same for settings that differ from those of a run that holds its memory; nothing where a budget is too small.
std::optional<Prepared> prepare_changed(const TrainOptions& options, const ModelConfig& config,
                                        std::uint64_t chunk_bytes, Accelerator* accelerator);

/// The input of the planner for one of the traces of `prepared`.
PlanInput plan_input(const Prepared& prepared, const Trace& trace, const Rates& rates);

}  // namespace transload
