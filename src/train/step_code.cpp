// The dry run: the trainer's own step over shapes alone gives the traces that everything else is planned from.
#include <fmt/format.h>

#include "base/check.h"
#include "engine/dry_run.h"
#include "plan/gather_plan.h"
#include "train/initial_state.h"
#include "train/planning.h"

namespace transload {

Tier compute_tier(const TrainOptions& options) { return options.device == DeviceKind::cpu ? Tier::host : Tier::device; }

namespace {

/// The optimizer of a dry run, and its steps.
class DryTrainer {
 public:
  DryTrainer(const TrainOptions& options, StepCode& code)
      : code_(code),
        runtime_{.blocks = &dry_, .compute = &dry_.stream(), .compute_tier = compute_tier(options)},
        optimizer_(*code.layout, dry_, dry_.stream(), dry_.stream(),
                   {.clip_norm = options.clip_norm,
                    .compute_tier = compute_tier(options),
                    .update_tiers = code.update_tiers,
                    .exchange = {.stream = &dry_.stream(), .tier = options.comm_tier, .plans = code.gathers}},
                   code.transformer->contributions()),
        batches_(static_cast<std::size_t>(options.shape.accumulate)),
        hyper_(code.layout->params().size()) {}

  Trace setup() {
    write_initial_weights(*code_.layout, dry_, dry_.stream(), nullptr);
    return dry_.take_trace();
  }
  Trace step() {
    code_.transformer->forward_backward(runtime_, optimizer_, batches_);
    optimizer_.finish_backward();
    optimizer_.step(Verdict{.finite = true, .norm = 1, .gradient_scale = 1}, hyper_);
    return dry_.take_trace();
  }
  Trace flush() {
    optimizer_.flush_to_host();
    return dry_.take_trace();
  }
  /// With nothing pending.
  Trace evaluation() {
    code_.transformer->evaluate(runtime_, optimizer_, batches_[0]);
    return dry_.take_trace();
  }
  /// The chunks that the last pass used.
  std::vector<ChunkId> uses() const { return optimizer_.uses(); }

 private:
  StepCode& code_;
  DryRun dry_;
  Runtime runtime_;
  Optimizer optimizer_;
  const std::vector<MicroBatch> batches_;
  const std::vector<ParamHyper> hyper_;
};

void record_traces(const TrainOptions& options, StepCode& code) {
  DryTrainer trainer(options, code);
  code.setup = trainer.setup();
  code.fresh_step = trainer.step();
  code.step = trainer.step();
  code.flush = trainer.flush();
  code.evaluation = trainer.evaluation();
}

/// The order in which training and evaluation use chunks.
std::vector<std::vector<ChunkId>> orders_of_use(const TrainOptions& options, StepCode& code) {
  DryTrainer trainer(options, code);
  std::vector<std::vector<ChunkId>> orders;
  trainer.step();
  orders.push_back(trainer.uses());
  trainer.flush();
  trainer.evaluation();
  orders.push_back(trainer.uses());
  return orders;
}

}  // namespace

std::vector<PlaneSpec> planes_for(const ModelConfig& config, const TrainOptions& options) {
  // Several contributions to a bf16 gradient are summed in fp32 first: a plane of its own.
  const bool partial = options.gradients == Dtype::bf16 && (options.shape.accumulate > 1 || config.tied);
  return training_planes(options.dtype, options.gradients, partial, options.shards.count > 1);
}

StepCode make_step_code(const ModelConfig& config, const TrainOptions& options, std::uint64_t chunk_bytes,
                        Accelerator* accelerator) {
  StepCode code;
  code.layout = std::make_unique<Layout>(model_params(config, options.freeze), planes_for(config, options), chunk_bytes,
                                         options.shards);
  code.transformer = std::make_unique<Transformer>(
      config, *code.layout, options.shape, accelerator == nullptr ? nullptr : accelerator->make_kernels(options.dtype));
  code.blocks = code.layout->blocks();
  const auto& kept = code.transformer->kept_blocks();
  code.blocks.insert(code.blocks.end(), kept.begin(), kept.end());
  if (options.shards.count > 1)
    set_gather_room(code, options, 1);
  else
    set_device_updates(code, options, 0);
  return code;
}

void set_gather_room(StepCode& code, const TrainOptions& options, std::size_t room) {
  code.gathers.clear();
  std::vector<GatherPlan> plans;
  for (const std::vector<ChunkId>& uses : orders_of_use(options, code)) plans.push_back(plan_gathers(uses, room));
  code.gathers = std::move(plans);
  set_device_updates(code, options, code.device_updates);
}

void set_device_updates(StepCode& code, const TrainOptions& options, std::uint64_t count) {
  code.update_tiers.clear();
  code.device_updates = 0;
  for (const Chunk& chunk : code.layout->chunks()) {
    const bool here = !chunk.frozen && code.device_updates < count;
    code.device_updates += here ? 1 : 0;
    code.update_tiers.push_back(here ? Tier::device : Tier::host);
  }
  record_traces(options, code);
}

}  // namespace transload
