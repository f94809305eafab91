// How fast ranks gather weights and sum gradients: the communicator's own collectives on blocks of a chunk's size, all
// ranks at once, as a step does them. Takes at most kMostRoom of memory where they work, or four chunks, given back.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "train/accelerator.h"
#include "train/calibrate.h"
#include "train/trainer.h"

namespace transload {

/// Bytes of whole chunks a second, all ranks' parts counted; 0: not known.
struct CollectiveRates {
  double gather = 0, scatter = 0;
};

/// What decides these rates, as text: the ranks, their transport, and the blocks. The chunk size is resolved.
std::string collective_key(const TrainOptions& options);

/// Every rank calls it together and gets what the slowest one measured. `accelerator`: where collectives work in device
/// memory, else null.
CollectiveRates measure_collectives(const TrainOptions& options, Communicator& communicator, Accelerator* accelerator);

/// The least that any rank measured: ranks wait for the slowest in each collective. Every rank calls it together.
ComputeRates slowest_of(const ComputeRates& mine, Communicator& communicator);

}  // namespace transload
