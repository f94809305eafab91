// How fast this machine computes the steps of a model: a short training of one layer of its shape, with everything in
// memory, made small where the layer is large. Takes seconds, some hundreds of MB at the most, and writes to a folder
// of its own that it removes.
#pragma once

#include "train/trainer.h"

namespace transload {

struct ComputeRates {
  double products = 0;                    ///< FLOP/s of forward and backward
  double updates = 0;                     ///< parameters a second
  double memory = 0;                      ///< bytes a second read plus written by a copy
  double to_device = 0, from_device = 0;  ///< bytes a second; of an emulated device without a limit: a copy's
};

/// What decides the rates, as text: equal texts, equal rates on one machine.
std::string compute_key(const ModelConfig& config, const TrainOptions& options);

/// `below`: a folder that can be written. The device's own kernels with --device cuda, else the processor's.
ComputeRates measure_compute(const ModelConfig& config, const TrainOptions& options, const std::string& below);

}  // namespace transload
