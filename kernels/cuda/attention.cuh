// Rotary embedding, and what happens to a panel of scores between attention's products. kAligned: rows may be read in
// groups of 16 bytes.
#pragma once

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"

namespace transload::kernels::cuda {

/// One block a token; kCount pairs (i, i + half) at a time, turned by the angle of (cos, sign · sin).
template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void rotate_heads(T* x, std::int64_t ld, std::int64_t length, int heads,
                                                            int half, const float* cos, const float* sin, float sign) {
  constexpr int kCount = kAligned ? kGroup : 1;
  const std::int64_t angle = static_cast<std::int64_t>(blockIdx.x) % length * half;
  const int steps = half / kCount;
  for (int step = static_cast<int>(threadIdx.x); step < heads * steps; step += static_cast<int>(blockDim.x)) {
    const int i = step % steps * kCount;
    T* const head = x + static_cast<std::int64_t>(blockIdx.x) * ld + static_cast<std::int64_t>(step / steps) * 2 * half;
    float c[kCount], s[kCount], a[kCount], b[kCount];
    load(cos + angle + i, c);
    load(sin + angle + i, s);
    load(head + i, a);
    load(head + half + i, b);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float turn = __fmul_rn(s[j], sign);
      const float first = __fsub_rn(__fmul_rn(a[j], c[j]), __fmul_rn(b[j], turn));
      b[j] = __fmaf_rn(a[j], turn, __fmul_rn(b[j], c[j]));
      a[j] = first;
    }
    store(a, head + i);
    store(b, head + half + i);
  }
}

/// Where a row of the panel lies: its first score, its place in lse and delta, and how many keys it sees.
struct ScoreRow {
  std::int64_t at, query_at, seen;
};
__device__ inline ScoreRow score_row(const ScorePanel& p) {
  const std::int64_t row = blockIdx.x, query = p.first_query + row % p.queries;
  return {row * p.ld, row / p.queries * p.lse_ld + query, query + 1 < p.length ? query + 1 : p.length};
}

template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void softmax_rows(ScorePanel panel, const float* scores, T* p, float* lse) {
  TRANSLOAD_SHARED(float, maxima, kRowWarps);
  TRANSLOAD_SHARED(float, sums, kRowWarps);
  const ScoreRow row = score_row(panel);
  const float* const s = scores + row.at;
  const float scale = panel.scale;
  float max = -infinity(), sum = 0;
  for_groups(row.seen, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(s + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) max = j < count ? fmaxf(max, __fmul_rn(v[j], scale)) : max;
  });
  max = block_max(max, maxima);
  for_groups(row.seen, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(s + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      sum = j < count ? __fadd_rn(sum, exp_of_bounded(__fmaf_rn(v[j], scale, -max))) : sum;
    }
  });
  sum = block_sum(sum, sums);
  const float inverse = __fdiv_rn(1.0f, sum);
  for_groups(panel.length, [&](std::int64_t i, int count) {
    const std::int64_t left = row.seen - i;
    const int seen = static_cast<int>(left < 0 ? 0 : left < count ? left : count);
    float v[kGroup] = {};
    if (seen > 0) load_part<kAligned>(s + i, seen, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      v[j] = j < seen ? __fmul_rn(exp_of_bounded(__fmaf_rn(v[j], scale, -max)), inverse) : 0.0f;
    }
    store_part<kAligned>(v, count, p + row.at + i);
  });
  if (threadIdx.x == 0) lse[row.query_at] = __fadd_rn(max, logf(sum));
}

template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void softmax_rows_backward(ScorePanel panel, const float* scores,
                                                                     const float* dp, const float* lse,
                                                                     const float* delta, T* p, T* ds) {
  const ScoreRow row = score_row(panel);
  const float shift = lse[row.query_at], less = delta[row.query_at];
  for_groups(panel.length, [&](std::int64_t i, int count) {
    const std::int64_t left = row.seen - i;
    const int seen = static_cast<int>(left < 0 ? 0 : left < count ? left : count);
    float s[kGroup] = {}, slope[kGroup] = {};
    if (seen > 0) {
      load_part<kAligned>(scores + row.at + i, seen, s);
      load_part<kAligned>(dp + row.at + i, seen, slope);
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float e = exp_of_bounded(__fmaf_rn(s[j], panel.scale, -shift));
      const float d = __fmul_rn(__fmul_rn(e, __fsub_rn(slope[j], less)), panel.scale);
      s[j] = j < seen ? e : 0.0f;
      slope[j] = j < seen ? d : 0.0f;
    }
    store_part<kAligned>(s, count, p + row.at + i);
    store_part<kAligned>(slope, count, ds + row.at + i);
  });
}

/// One warp a head of a token.
template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void head_dots(const T* a, const T* b, std::int64_t ld, std::int64_t length,
                                                         std::int64_t heads, std::int64_t head_dim, std::int64_t count,
                                                         float* to) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (item >= count) return;
  const std::int64_t token = item / heads, head = item % heads;
  const std::int64_t at = token * ld + head * head_dim;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32 * kGroup; i < head_dim; i += 32 * kGroup) {
    const int part = static_cast<int>(head_dim - i < kGroup ? head_dim - i : kGroup);
    float u[kGroup], v[kGroup];
    load_part<kAligned>(a + at + i, part, u);
    load_part<kAligned>(b + at + i, part, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) sum = __fmaf_rn(u[j], v[j], sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) to[(token / length * heads + head) * length + token % length] = sum;
}

}  // namespace transload::kernels::cuda
