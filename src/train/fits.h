// Parts of the planning for those that plan what is not to be run here: other settings, other machines.
#pragma once

#include "train/planning.h"

namespace transload {

/// Whether a step and its store fit in the budgets with this chunk size, on the processor's kernels. Takes no memory.
bool fits_budgets(const TrainOptions& options, const ModelConfig& config, std::uint64_t chunk_bytes);

/// Samples of a step over all ranks, and this rank's micro-batches (trainer.cpp).
void resolve_batch(TrainOptions& options);

}  // namespace transload
