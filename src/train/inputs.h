// What a run reads: the model's shape and first weights, the data, the validation file; and every check of settings
// that can be made before memory is taken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/data.h"
#include "train/model_config.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace transload {

struct Inputs {
  ModelConfig config;
  std::unique_ptr<InitialWeights> weights;
  std::unique_ptr<TokenFile> data, validation;  ///< validation may be null
  std::unique_ptr<SampleOrder> order, validation_order;
};

/// InputError: settings out of range or against each other, with the flag and the value.
void check_settings(const TrainOptions& options);

/// The model: shape and first weights.
Inputs open_model(const TrainOptions& options);
/// The data, in the model's vocabulary. Ids of a .bin file are read through once, so that a bad one is found now.
void open_data(const TrainOptions& options, Inputs& inputs);

/// Positions first, first + 1, … of an order as micro-batches of a step. Reuses the vectors' room.
void read_batches(const TokenFile& file, const SampleOrder& order, std::uint64_t first, const StepShape& shape,
                  std::vector<MicroBatch>& batches);

}  // namespace transload
