// Element types, and the exact split of an fp32 master into a bf16 weight and a 16-bit residue.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace transload {

enum class Dtype : std::uint8_t { f32, bf16, f16, i16 };

constexpr std::uint64_t size_of(Dtype d) { return d == Dtype::f32 ? 4 : 2; }
constexpr std::string_view name_of(Dtype d) {
  switch (d) {
    case Dtype::f32:
      return "fp32";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f16:
      return "fp16";
    case Dtype::i16:
      return "int16";
  }
  return "?";
}

/// Storage of one bf16 value; arithmetic happens in float.
struct bf16 {
  std::uint16_t bits;
};

inline float to_float(bf16 v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16); }
inline float to_float(float v) { return v; }

/// Rounds to nearest, ties to even; any NaN becomes the quiet NaN 0x7FC0. For activations and gradients.
inline bf16 round_to_bf16(float f) {
  if (std::isnan(f)) return {0x7FC0};
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

/// Weight + residue = the exact fp32 master (DESIGN.md, "Precision"): ties round up in the bit pattern, so that
/// master_bits = (weight_bits << 16) + int16(residue) holds for every master; a NaN is made 0x7FC00000 first.
struct SplitMaster {
  bf16 weight;
  std::int16_t residue;
};
inline SplitMaster split_master(float master) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(master);
  if (std::isnan(master)) u = 0x7FC00000u;
  const auto residue = static_cast<std::int16_t>(u & 0xFFFFu);
  const auto weight = static_cast<std::uint16_t>((u + 0x8000u) >> 16);
  return {{weight}, residue};
}
inline float join_master(bf16 weight, std::int16_t residue) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(weight.bits) << 16) +
                              static_cast<std::uint32_t>(static_cast<std::int32_t>(residue)));
}

}  // namespace transload
