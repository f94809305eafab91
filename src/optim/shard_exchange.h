// ShardExchange: what ranks that share chunks do with each other in a pass. Weights are gathered into the transient
// plane `gathered` before use, ahead of it where the order of uses is known; the ranks' gradients of a chunk, plane
// `local`, are summed into this rank's shard, plane `gradient`.
//
// Collectives run on a stream of their own in the order of their issue, which follows from the calls alone: ranks that
// run the same step code issue the same collectives, whatever their data, budgets and tiers.
// Threading: the issuing thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/trace_types.h"
#include "chunk/layout.h"
#include "comm/communicator.h"
#include "engine/block_access.h"
#include "optim/gradient_kernels.h"

namespace transload {

class ShardExchange {
 public:
  struct Options {
    Communicator* communicator = nullptr;              ///< null in a dry run
    Stream* stream = nullptr;                          ///< of collectives
    Tier tier = Tier::host;                            ///< where collectives work
    const std::atomic<std::uint64_t>* step = nullptr;  ///< under way, for those who lose this rank
    std::vector<GatherPlan> plans = {};                ///< by pass; empty: gathered when used
  };
  /// `squares` sums at `options.tier`. `before_gather` is called for a chunk before its shard is read.
  ShardExchange(const Layout& layout, BlockAccess& blocks, Options options, std::shared_ptr<GradientKernels> squares,
                std::function<void(ChunkId)> before_gather);

  /// The next uses are those of plan `pass`. What an earlier pass left is given up.
  void begin_pass(std::size_t pass);
  /// Pins a chunk's gathered weights at `tier`.
  Pin use_weights(ChunkId chunk, Tier tier);
  /// This rank's gradient of the chunk is complete. `trained` says of a parameter whether its squares count.
  void sum_gradient(ChunkId chunk, const std::function<bool(ParamId)>& trained);
  /// Returns when all collectives have ended; rethrows their first error, or that of a transfer whose bytes they were
  /// to carry, before any other rank can take part in the verdict. The exact sum of squares over all ranks since
  /// the last call.
  kernels::ExactSum finish();

  /// In a dry run: the chunks used since begin_pass().
  const std::vector<ChunkId>& uses() const { return uses_; }

 private:
  void gather(ChunkId chunk);
  void give_up(ChunkId chunk);
  void publish(ChunkId chunk, const char* operation) const;
  const GatherPlan::Use* planned(ChunkId chunk);
  BlockId block(ChunkId chunk, int plane) const { return layout_.block(chunk, plane); }

  const Layout& layout_;
  BlockAccess& blocks_;
  Options options_;
  std::shared_ptr<GradientKernels> squares_;
  std::function<void(ChunkId)> before_gather_;
  int weight_, gathered_, local_, gradient_;  // planes
  const GatherPlan* plan_ = nullptr;
  std::size_t next_ = 0;    // use of the plan
  std::vector<bool> held_;  // by chunk: gathered and not yet used for the last time
  std::vector<ChunkId> uses_;
};

}  // namespace transload
