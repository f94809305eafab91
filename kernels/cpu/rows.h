// Single-threaded pieces that products, attention and norms share. Private to this folder.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

void widen_row(const bf16* from, float* to, std::int64_t n);

/// y = round(acc [+ bias]); y may be acc where T is float.
template <class T>
void round_row(const float* acc, const float* bias, T* y, std::int64_t n);

/// The last step of sums over tokens: sum[i] = Σ over blocks ascending of parts[block · stride + i], i in [begin, end).
void sum_parts(const float* parts, std::int64_t stride, std::int64_t blocks, std::int64_t begin, std::int64_t end,
               float* sum);

}  // namespace transload::kernels
