// The sharded optimizer: one update pipeline per chunk, applied lazily. After backward and the verdict every trainable
// chunk has a pending update; it is applied when the chunk's weights are next wanted (use_weights) or by flush(). So
// the state's I/O runs beside the next forward, chunk by chunk, and the order of accesses is one deterministic line.
// Each chunk is updated at a tier of its own: in device memory on the compute stream, in host memory on the host
// stream. The bits are the same. Where ranks share chunks, each updates its shard: weights are gathered before use and
// gradients summed over ranks once complete (ShardExchange), and the verdict is the same on all ranks.
//
// Threading: called by the issuing thread alone; arithmetic runs on the streams given.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "chunk/layout.h"
#include "engine/block_access.h"
#include "kernels/cpu/adamw.h"
#include "optim/gradient_kernels.h"
#include "optim/shard_exchange.h"
#include "optim/update_kernels.h"

namespace transload {

struct Verdict {
  bool finite = true;
  double norm = 0;           ///< before clipping, of the final rounded gradients; NaN when not finite
  float gradient_scale = 1;  ///< applied in the update
};

/// Hyperparameters of one parameter at the moment of the step.
struct ParamHyper {
  kernels::AdamwHyper adamw;
  bool present = true;  ///< false: no gradient this step, no step count, no state change
};

class Optimizer {
 public:
  struct Options {
    double clip_norm = 1.0;                                ///< ≤ 0: none
    Tier compute_tier = Tier::host;                        ///< where gradients are made
    std::shared_ptr<GradientKernels> gradients = nullptr;  ///< of the processor that makes them; null: the CPU's
    std::vector<Tier> update_tiers = {};                   ///< by chunk, host or compute_tier; empty: all host
    std::shared_ptr<UpdateKernels> updates = nullptr;      ///< of the device tier; null: the CPU's
    ShardExchange::Options exchange = {};                  ///< where the layout has several shards
    std::shared_ptr<GradientKernels> sums = nullptr;       ///< at exchange.tier; null: the CPU's
  };
  /// `contributions[p]`: how many times backward adds to parameter p in a step (uses × micro-batches); 0 for frozen.
  Optimizer(const Layout& layout, BlockAccess& blocks, Stream& compute, Stream& host, Options options,
            std::vector<std::uint32_t> contributions);
  ~Optimizer();

  /// A pass begins: what it uses is known by its kind.
  enum class Pass : std::uint8_t { training, evaluation };
  void begin_pass(Pass pass);
  /// Pins the weights of a chunk at the compute tier to be read, after its pending update.
  Pin use_weights(ChunkId chunk);
  /// In a dry run of several ranks: the chunks used since begin_pass(), for plan_gathers().
  std::vector<ChunkId> uses() const;

  /// Backward hands over fp32 sums of elements [begin, begin + count) of parameter p. `values` lies in the compute
  /// tier's workspace and is read on the compute stream. Each of the parameter's contributions covers all its elements
  /// once, contributions in order.
  void contribute(ParamId p, std::uint64_t begin, std::uint64_t count, const float* values);

  /// All contributions are in. Waits for the compute stream (the verdict is the barrier).
  Verdict finish_backward();
  /// Makes updates pending with these hyperparameters (by ParamId), or discards the gradients of a step that is not
  /// finite: nothing changes then.
  void step(const Verdict& verdict, const std::vector<ParamHyper>& hyper);
  /// Applies what is pending, chunk order.
  void flush();
  /// The same for a commit: what the device updates comes to host memory, from where the store gets it.
  void flush_to_host();

  /// Updates applied or pending so far, by parameter.
  const std::vector<std::uint64_t>& step_counts() const;
  void set_step_counts(std::vector<std::uint64_t> counts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
