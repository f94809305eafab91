#include "kernels/cpu/stochastic.h"

#include <bit>

namespace transload::kernels {
namespace {

bf16 round_up_by(float value, std::uint32_t random16) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  const std::uint32_t rounded = (u + random16) >> 16;
  const std::uint32_t special = magnitude > 0x7F800000u ? 0x7FC0u : u >> 16;
  return {static_cast<std::uint16_t>(magnitude >= 0x7F800000u ? special : rounded)};
}

}  // namespace

void round_stochastic(std::uint64_t stream, std::uint64_t element, std::int64_t n, const float* first,
                      const float* second, bf16* to_first, bf16* to_second) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t z = stream + (element + static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    to_first[i] = round_up_by(first[i], static_cast<std::uint32_t>(z & 0xFFFFu));
    to_second[i] = round_up_by(second[i], static_cast<std::uint32_t>(z >> 48));
  }
}

}  // namespace transload::kernels
