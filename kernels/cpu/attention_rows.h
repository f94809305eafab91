// The element-wise half of attention: what happens to one row of a block of scores between its products. Private to
// attention.cpp. P: how probabilities are handed to the next product.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

/// Columns of a block of scores; every row has room for all of them.
inline constexpr std::int64_t kScoreColumns = 256;

/// Rows of the arrays below for one query. T: what values are rounded to; P: what they are stored as (T or float).
template <class T, class P>
struct AttentionRowKernels {
  /// Running softmax over one more block: p = round(e^(scale·s − max)) for the first `valid` columns, 0 up to
  /// `columns`; max and sum (of the exponentials before rounding) go on; returns what earlier results are scaled by.
  float (*forward)(const float* s, std::int64_t valid, std::int64_t columns, float scale, float& max, float& sum, P* p);
  /// p as above from the log-sum-exp; ds = round(p · (dp − delta) · scale).
  void (*backward)(const float* s, const float* dp, std::int64_t valid, std::int64_t columns, float scale, float lse,
                   float delta, P* p, P* ds);
};
template <class T, class P>
const AttentionRowKernels<T, P>& attention_row_kernels();

/// acc[i] *= factor.
void scale_row(float* acc, std::int64_t n, float factor);
/// to[i] = round(acc[i] / divisor).
template <class T>
void divide_row(const float* acc, std::int64_t n, float divisor, T* to);
/// Σ a[i]·b[i].
template <class T>
float dot_row(const T* a, const T* b, std::int64_t n);

}  // namespace transload::kernels
