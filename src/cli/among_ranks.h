// What a command does as one of the ranks that a launcher started: they meet, work, and end together or with one line
// each on who was lost.
#pragma once

#include <functional>

#include "base/error.h"
#include "comm/launch.h"
#include "train/trainer.h"

namespace transload::cli {

/// `work` with the communicator of all ranks (of one process where there is no launcher), by the GPUs' own collectives
/// with --device cuda. Where a rank is lost `lost` says what is left and the process ends; where `work` throws, the
/// others are told.
int among_ranks(const Launch& launch, const TrainOptions& options, const std::function<int(Communicator&)>& work,
                const std::function<const char*(const RankLostError&)>& lost);

}  // namespace transload::cli
