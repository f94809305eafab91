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

/// Positions first, first + 1, … of an order as micro-batches of a step. Reuses the vectors' room. `samples`: how many
/// there are; what is missing of the micro-batches is padding, whose targets are −1 and do not count.
void read_batches(const TokenFile& file, const SampleOrder& order, std::uint64_t first, std::uint64_t samples,
                  const StepShape& shape, std::vector<MicroBatch>& batches);

/// A rank's run of a step's samples: as even as can be, the first ranks one more.
struct SampleRun {
  std::uint64_t first = 0, count = 0;  ///< from the step's first sample
};
SampleRun samples_of(std::uint64_t samples, std::uint32_t rank, std::uint32_t ranks);

}  // namespace transload
