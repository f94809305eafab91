// Where a model's first weights come from: the tensors of a folder, or a counter-based generator keyed by seed and
// parameter. Both give any range of elements in any order: the same values for any layout.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/model_config.h"
#include "train/safetensors.h"

namespace transload {

class InitialWeights {
 public:
  virtual ~InitialWeights() = default;
  /// Elements [begin, begin + count) of a parameter of the model, fp32. Thread-safe.
  virtual void fill(const ParamSpec& param, std::uint64_t begin, std::uint64_t count, float* to) const = 0;
  /// What resume compares: "4 files, 12345 bytes, xxh3 …" (sizes and a sampled hash), or "seed 1".
  virtual std::string identity() const = 0;
};

/// Whether a model folder has weights that can be read. InputError when it has weights of another format only: they
/// must not be replaced by random ones without a word.
bool has_weights(const std::string& folder);

/// Tensors found with and without the prefix of the inner model ("transformer.", "model."). InputError names what is
/// missing, surplus or contradicts the config's shapes. Ignored: attention masks and rotary tables that old versions
/// of transformers saved, and the output head of a tied model where it has the embedding's shape.
std::unique_ptr<InitialWeights> weights_from_folder(const ModelConfig& config, const std::vector<ParamSpec>& params,
                                                    const std::string& folder);

/// As transformers initialises: normal(0, initializer_range), norms one, biases zero, GPT-2's residual projections
/// scaled by 1/√(2·layers).
std::unique_ptr<InitialWeights> weights_from_seed(const ModelConfig& config, std::uint64_t seed);

}  // namespace transload
