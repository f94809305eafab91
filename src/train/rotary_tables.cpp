#include "train/rotary_tables.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace transload {
namespace {

/// Llama 3: long wavelengths are stretched by `factor`, short ones kept, those between blended.
double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_positions);
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double scaled_frequency(const RopeConfig& rope, double frequency) {
  if (rope.type == "default") return frequency;
  if (rope.type == "linear") return frequency / rope.factor;
  if (rope.type == "llama3") return llama3_frequency(rope, frequency);
  throw InputError("The rotary type \"" + rope.type + "\" is not supported; use default, linear or llama3.");
}

}  // namespace

RotaryTables::RotaryTables(const RopeConfig& rope, std::int64_t head_dim, std::int64_t length) {
  const std::int64_t half = head_dim / 2;
  cos.resize(static_cast<std::size_t>(length * half));
  sin.resize(cos.size());
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        scaled_frequency(rope, std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    for (std::int64_t t = 0; t < length; ++t) {
      const double angle = frequency * static_cast<double>(t);
      cos[static_cast<std::size_t>(t * half + i)] = static_cast<float>(std::cos(angle));
      sin[static_cast<std::size_t>(t * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace transload
