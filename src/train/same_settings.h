// Ranks that are started one by one may be given different settings; they would train something that nobody asked for,
// or wait for each other in different places. What all must have alike is compared at the start. Folders, memory,
// threads and ways of I/O are each rank's own.
//
// Every rank calls these together, and every rank throws the same InputError. One rank: nothing.
#pragma once

#include "comm/communicator.h"
#include "train/inputs.h"
#include "train/trainer.h"

namespace transload {

void check_same_settings(const TrainOptions& options, Communicator& communicator);
void check_same_inputs(const Inputs& inputs, Communicator& communicator);

}  // namespace transload
