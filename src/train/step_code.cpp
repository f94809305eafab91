// The dry run: the trainer's own step over shapes alone gives the traces that everything else is planned from.
#include <fmt/format.h>

#include "base/check.h"
#include "engine/dry_run.h"
#include "train/initial_state.h"
#include "train/planning.h"

namespace transload {

Tier compute_tier(const TrainOptions& options) { return options.device == DeviceKind::cpu ? Tier::host : Tier::device; }

namespace {

void record_traces(const TrainOptions& options, StepCode& code) {
  DryRun dry;
  write_initial_weights(*code.layout, dry, dry.stream(), nullptr);
  code.setup = dry.take_trace();

  Optimizer optimizer(
      *code.layout, dry, dry.stream(), dry.stream(),
      {.clip_norm = options.clip_norm, .compute_tier = compute_tier(options), .update_tiers = code.update_tiers},
      code.transformer->contributions());
  const Runtime runtime{.blocks = &dry, .compute = &dry.stream(), .compute_tier = compute_tier(options)};
  const std::vector<MicroBatch> batches(static_cast<std::size_t>(options.shape.accumulate));
  const std::vector<ParamHyper> hyper(code.layout->params().size());
  const auto one_step = [&] {
    code.transformer->forward_backward(runtime, optimizer, batches);
    optimizer.finish_backward();
    optimizer.step(Verdict{.finite = true, .norm = 1, .gradient_scale = 1}, hyper);
    return dry.take_trace();
  };
  code.fresh_step = one_step();
  code.step = one_step();
  optimizer.flush();
  dry.take_trace();  // the same accesses as the updates within a step, one chunk at a time
  code.transformer->evaluate(runtime, optimizer, batches[0]);
  code.evaluation = dry.take_trace();
}

}  // namespace

std::vector<PlaneSpec> planes_for(const ModelConfig& config, const TrainOptions& options) {
  // Several contributions to a bf16 gradient are summed in fp32 first: a plane of its own.
  const bool partial = options.gradients == Dtype::bf16 && (options.shape.accumulate > 1 || config.tied);
  return training_planes(options.dtype, options.gradients, partial);
}

StepCode make_step_code(const ModelConfig& config, const TrainOptions& options, std::uint64_t chunk_bytes,
                        Accelerator* accelerator) {
  StepCode code;
  code.layout =
      std::make_unique<Layout>(model_params(config, options.freeze), planes_for(config, options), chunk_bytes);
  code.transformer = std::make_unique<Transformer>(
      config, *code.layout, options.shape, accelerator == nullptr ? nullptr : accelerator->make_kernels(options.dtype));
  code.blocks = code.layout->blocks();
  const auto& kept = code.transformer->kept_blocks();
  code.blocks.insert(code.blocks.end(), kept.begin(), kept.end());
  set_device_updates(code, options, 0);
  return code;
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
