// IEEE binary16 ("fp16") to and from fp32, by integer arithmetic: the same bits on every processor. Rounds to nearest,
// ties to even; what is too large becomes infinite; any NaN becomes 0x7E00.
#pragma once

#include <bit>
#include <cstdint>

namespace transload::kernels {

struct half {
  std::uint16_t bits;
};

inline float to_float(half h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = h.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u)  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // The exponent is rebiased by a product with 2^112, which is exact and turns denormals into normal numbers.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

inline half to_half(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>(u >> 16 & 0x8000u);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  std::uint32_t rounded;
  if (magnitude > 0x7F800000u) {
    return {0x7E00};
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above
    rounded = 0x7C00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum's unit in the last place is 2^-24, as a denormal's
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    rounded = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | rounded)};
}

}  // namespace transload::kernels
