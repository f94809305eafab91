// RMS norm and layer norm (kCentred), forward and backward; one block a token. kAligned: rows, weight and bias may be
// read in groups of 16 bytes.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace transload::kernels::cuda {

/// Of one token.
struct Moments {
  float mean, rstd;
};

/// Arrays of a norm: x, y, dy, dx [tokens, width]; weight, bias [width]; moments [tokens].
template <class T>
struct NormArrays {
  std::int64_t width = 0;
  float eps = 0;
  const T* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  T* y = nullptr;
  const T* dy = nullptr;
  T* dx = nullptr;
  bool accumulate = false;
  Moments* moments = nullptr;
};

/// mean (0 for RMS) and 1/√(mean((x − mean)²) + eps) of a row, in every thread.
template <bool kCentred, bool kAligned, class T>
__device__ inline Moments row_moments(const T* x, std::int64_t width, float eps) {
  TRANSLOAD_SHARED(float, sums, kRowWarps);
  TRANSLOAD_SHARED(float, squares, kRowWarps);
  float mean = 0, sum = 0;
  if constexpr (kCentred) {
    for_groups(width, [&](std::int64_t i, int count) {
      float v[kGroup];
      load_part<kAligned>(x + i, count, v);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) sum = __fadd_rn(sum, v[j]);
    });
    mean = __fdiv_rn(block_sum(sum, sums), static_cast<float>(width));
  }
  float square = 0;
  for_groups(width, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(x + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float d = j < count ? __fsub_rn(v[j], mean) : 0.0f;
      square = __fmaf_rn(d, d, square);
    }
  });
  const float variance = __fdiv_rn(block_sum(square, squares), static_cast<float>(width));
  return {mean, __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, eps)))};
}

template <bool kCentred, bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void norm_rows(NormArrays<T> a) {
  const T* const x = a.x + static_cast<std::int64_t>(blockIdx.x) * a.width;
  T* const y = a.y + static_cast<std::int64_t>(blockIdx.x) * a.width;
  const Moments m = row_moments<kCentred, kAligned>(x, a.width, a.eps);
  for_groups(a.width, [&](std::int64_t i, int count) {
    float v[kGroup], weight[kGroup], bias[kGroup] = {};
    load_part<kAligned>(x + i, count, v);
    load_part<kAligned>(a.weight + i, count, weight);
    if (kCentred) load_part<kAligned>(a.bias + i, count, bias);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      v[j] = __fmul_rn(__fmul_rn(__fsub_rn(v[j], m.mean), m.rstd), weight[j]);
      if (kCentred) v[j] = __fadd_rn(v[j], bias[j]);
    }
    store_part<kAligned>(v, count, y + i);
  });
}

/// xhat = (x − mean)·rstd and g = dy·weight of a group, zeros behind `count`.
template <bool kAligned, class T>
__device__ inline void load_terms(const NormArrays<T>& a, const Moments& m, std::int64_t row, std::int64_t i, int count,
                                  float (&xhat)[kGroup], float (&g)[kGroup]) {
  float weight[kGroup];
  load_part<kAligned>(a.x + row + i, count, xhat);
  load_part<kAligned>(a.dy + row + i, count, g);
  load_part<kAligned>(a.weight + i, count, weight);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    xhat[j] = __fmul_rn(__fsub_rn(xhat[j], m.mean), m.rstd);
    g[j] = __fmul_rn(g[j], weight[j]);
  }
}

/// dx = rstd·(g − mean(g) − xhat·mean(g·xhat)), without mean(g) for RMS; the token's moments for dweight.
template <bool kCentred, bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void norm_rows_backward(NormArrays<T> a) {
  TRANSLOAD_SHARED(float, sums_g, kRowWarps);
  TRANSLOAD_SHARED(float, sums_gx, kRowWarps);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * a.width;
  const Moments m = row_moments<kCentred, kAligned>(a.x + row, a.width, a.eps);
  if (threadIdx.x == 0) a.moments[blockIdx.x] = m;
  float sum_g = 0, sum_gx = 0;
  for_groups(a.width, [&](std::int64_t i, int count) {
    float xhat[kGroup], g[kGroup];
    load_terms<kAligned>(a, m, row, i, count, xhat, g);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j >= count) continue;
      sum_g = __fadd_rn(sum_g, g[j]);
      sum_gx = __fmaf_rn(g[j], xhat[j], sum_gx);
    }
  });
  const auto width = static_cast<float>(a.width);
  const float mean_g = kCentred ? __fdiv_rn(block_sum(sum_g, sums_g), width) : 0.0f;
  const float mean_gx = __fdiv_rn(block_sum(sum_gx, sums_gx), width);
  for_groups(a.width, [&](std::int64_t i, int count) {
    float xhat[kGroup], g[kGroup], before[kGroup] = {};
    load_terms<kAligned>(a, m, row, i, count, xhat, g);
    if (a.accumulate) load_part<kAligned>(a.dx + row + i, count, before);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      g[j] = __fmul_rn(m.rstd, __fsub_rn(__fsub_rn(g[j], mean_g), __fmul_rn(xhat[j], mean_gx)));
      if (a.accumulate) g[j] = __fadd_rn(before[j], g[j]);
    }
    store_part<kAligned>(g, count, a.dx + row + i);
  });
}

/// Terms of dweight = Σ dy·xhat, and of dbias = Σ dy.
template <bool kCentred, class T>
struct NormTerms {
  static constexpr int kSums = kCentred ? 2 : 1;
  NormArrays<T> a;
  template <bool kAligned>
  __device__ void add(std::int64_t t, std::int64_t column, int count, float (&sums)[kSums][kGroup]) const {
    const Moments m = a.moments[t];
    float x[kGroup], dy[kGroup];
    load_part<kAligned>(a.x + t * a.width + column, count, x);
    load_part<kAligned>(a.dy + t * a.width + column, count, dy);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float xhat = __fmul_rn(__fsub_rn(x[j], m.mean), m.rstd);
      sums[0][j] = __fmaf_rn(dy[j], xhat, sums[0][j]);
      if constexpr (kCentred) sums[1][j] = __fadd_rn(dy[j], sums[1][j]);
    }
  }
};

}  // namespace transload::kernels::cuda
