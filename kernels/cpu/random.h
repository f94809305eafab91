// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11) keyed by seed and parameter, counter = element.
// The same for any layout.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace transload::kernels {

/// The generator itself: four random words of a counter under a key.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);
/// 64-bit key of a parameter from the run's seed and its name (xxh3).
std::uint64_t parameter_key(std::uint64_t seed, std::string_view name);
/// to[i] = N(0, stddev²) of element first + i (Box–Muller on Philox words), not clipped (|x| ≤ 6.8 stddev by nature).
/// Made of IEEE double operations alone, no libm: the same bits on every machine.
void fill_normal(std::uint64_t key, std::uint64_t first, std::int64_t n, float stddev, float* to);
/// One 64-bit word of a counter (data order).
std::uint64_t random_word(std::uint64_t key, std::uint64_t counter);

}  // namespace transload::kernels
