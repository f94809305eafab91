// Cosines and sines of rotary embedding, [length, head_dim / 2] fp32, computed in double: types default, linear,
// llama3.
#pragma once

#include <cstdint>
#include <vector>

#include "train/model_config.h"

namespace transload {

struct RotaryTables {
  std::vector<float> cos, sin;
  RotaryTables(const RopeConfig& rope, std::int64_t head_dim, std::int64_t length);
};

}  // namespace transload
