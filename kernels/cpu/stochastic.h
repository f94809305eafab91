// Stochastic rounding of fp32 to bf16: up with the probability that the rounded-away part asks for, so that the mean is
// kept. What is random is a function of stream and element alone: SplitMix64 (Steele, Lea, Flood, OOPSLA '14) of
// stream + element · golden ratio, 16 bits for each of two arrays.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

/// first[i] and second[i] rounded into to_first[i] and to_second[i]; the element's number is `element` + i. Infinities
/// stay, any NaN becomes 0x7FC0. n ≥ 0.
void round_stochastic(std::uint64_t stream, std::uint64_t element, std::int64_t n, const float* first,
                      const float* second, bf16* to_first, bf16* to_second);

}  // namespace transload::kernels
