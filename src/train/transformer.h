// Forward and backward of GPT-2, Llama and Qwen2 over blocks: the step code. It pins what it uses, launches kernels on
// the compute stream and hands gradients to the optimizer; the same code runs dry (shapes only) for the trace.
//
// All micro-batches of a step go through a layer before the next layer. Layer inputs are kept as transient blocks;
// with recompute `none` a layer's inner activations are kept as well, with `layer` they are computed again in backward:
// the same bits. Memory outside blocks is one workspace, its size a function of shapes alone, taken anew for each phase
// (forward, head and loss, backward) behind the streams' end and given up at the end of the call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/block_access.h"
#include "optim/optimizer.h"
#include "train/data.h"
#include "train/model_config.h"
#include "train/step_kernels.h"

namespace transload {

enum class Recompute : std::uint8_t { none, layer };

struct StepShape {
  std::int64_t batch = 1, length = 0, accumulate = 1;
  Recompute recompute = Recompute::layer;
  std::int64_t samples = 0;  ///< of a step on all ranks; 0: batch × accumulate, of this one alone
  std::int64_t samples_a_step() const { return samples > 0 ? samples : batch * accumulate; }
};

/// Where step code runs.
struct Runtime {
  BlockAccess* blocks = nullptr;
  Stream* compute = nullptr;
  Tier compute_tier = Tier::host;
};

/// What a call launches reads this object's memory: after an exception end the compute stream before destroying it.
class Transformer {
 public:
  /// `kernels`: of the processor that computes; null: the CPU's.
  Transformer(const ModelConfig& config, const Layout& layout, StepShape shape,
              std::unique_ptr<StepKernels> kernels = nullptr);
  ~Transformer();

  /// Transient blocks that the step needs beside the layout's, in BlockId order from layout.blocks().size() on.
  const std::vector<BlockSpec>& kept_blocks() const;
  /// Optimizer's `contributions`: one a use and micro-batch in layers; in embedding, final norm and head one a use and
  /// group of micro-batches (as many as fit a fixed size; they go through as one batch).
  std::vector<std::uint32_t> contributions() const;
  /// The most workspace bytes of the compute tier that a phase takes: for the budget and the plan.
  std::uint64_t workspace_bytes() const;

  /// Forward and backward of one step over shape.accumulate micro-batches; gradients go to the optimizer, of the mean
  /// loss over all predictions of the step (samples_a_step() × length). Returns this rank's part of that mean (fp64;
  /// synchronizes the compute stream; 0 in a dry run, where micro-batches may be empty). Predictions whose target is
  /// below 0 do not count.
  double forward_backward(const Runtime& rt, Optimizer& optimizer, std::span<const MicroBatch> batches);
  /// Forward only; the sum of losses over batch × length predictions of one micro-batch.
  double evaluate(const Runtime& rt, Optimizer& optimizer, const MicroBatch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// FLOPs of products in one step (forward, backward, recomputation), for limits.
double step_flops(const ModelConfig& config, const StepShape& shape);

}  // namespace transload
