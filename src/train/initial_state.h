// The state before the first step: weights (and residues) of this rank's shards written chunk by chunk through pins,
// moments declared zero. Of the initial values a rank asks for those of its shards alone.
#pragma once

#include "chunk/layout.h"
#include "engine/block_access.h"
#include "engine/engine.h"
#include "train/weights.h"

namespace transload {

/// Writes weight and residue of this rank's shard of every chunk at the host tier. `values` is null in a dry run.
void write_initial_weights(const Layout& layout, BlockAccess& blocks, Stream& stream, const InitialWeights* values);

/// Moments of trainable chunks are zeros.
void declare_zero_moments(const Layout& layout, Engine& engine);

}  // namespace transload
