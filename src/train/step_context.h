// StepContext: what step code needs to issue work. Lives on the issuing thread for one call; launched closures must not
// refer to it (they may run after an exception has unwound it), only to values copied out of it.
#pragma once

#include <cstdint>

#include "chunk/layout.h"
#include "engine/block_access.h"
#include "optim/optimizer.h"
#include "train/step_kernels.h"

namespace transload {

struct StepContext {
  BlockAccess& blocks;
  Stream& stream;
  Tier tier;
  Optimizer& optimizer;
  const Layout& layout;
  StepKernels& kernels;
  bool training;  ///< false: forward only, nothing is kept for a backward

  /// Hands over a gradient; frozen parameters have none.
  void contribute(ParamId p, std::uint64_t begin, std::uint64_t count, const float* values) {
    if (!layout.param(p).frozen) optimizer.contribute(p, begin, count, values);
  }
  bool trains(ParamId p) const { return !layout.param(p).frozen; }

  /// A whole transient block to or from workspace.
  void load(BlockId block, AccessKind kind, void* to, std::uint64_t bytes) {
    Pin pin = blocks.pin(block, tier, kind);
    stream.wait(pin.ready);
    stream.launch([&k = kernels, view = pin.view, to, bytes] { k.copy_out(view, to, 0, bytes); });
    blocks.unpin(std::move(pin), stream);
  }
  void store(BlockId block, const void* from, std::uint64_t bytes) {
    Pin pin = blocks.pin(block, tier, AccessKind::write);  // ready at once
    stream.launch([&k = kernels, view = pin.view, from, bytes] { k.copy_in(view, from, 0, bytes); });
    blocks.unpin(std::move(pin), stream);
  }
};

}  // namespace transload
