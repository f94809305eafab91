// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11) keyed by seed and parameter, counter = element.
// The same for any layout.
#pragma once

#include <cstdint>
#include <string_view>

namespace transload::kernels {

/// 64-bit key of a parameter from the run's seed and its name (xxh3).
std::uint64_t parameter_key(std::uint64_t seed, std::string_view name);
/// to[i] = N(0, stddev²) of element first + i (Box–Muller on Philox words), clipped to nothing.
void fill_normal(std::uint64_t key, std::uint64_t first, std::int64_t n, float stddev, float* to);
/// One 64-bit word of a counter (data order).
std::uint64_t random_word(std::uint64_t key, std::uint64_t counter);

}  // namespace transload::kernels
