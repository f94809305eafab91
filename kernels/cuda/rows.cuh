// Conversion, addition and rounding, elementwise; sums of columns over tokens in fixed blocks.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace transload::kernels::cuda {

/// to = from in another type, or the same.
template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float v[kCount];
    load(from + i, v);
    store(v, to + i);
  }
};

/// y = round(a + b).
template <class A, class B, class Y>
struct Add {
  const A* a;
  const B* b;
  Y* y;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float u[kCount], v[kCount];
    load(a + i, u);
    load(b + i, v);
#pragma unroll
    for (int j = 0; j < kCount; ++j) u[j] = u[j] + v[j];
    store(u, y + i);
  }
};

/// y = round(acc [+ bias of the column] [+ residual]). A group lies in one row, and its columns on a boundary.
template <class T>
struct RoundRows {
  const float* acc;
  const float* bias;
  const T* residual;
  T* y;
  std::int64_t width;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float v[kCount], term[kCount];
    load(acc + i, v);
    if (bias != nullptr) {
      load(bias + i % width, term);
      add_to(term, v);
    }
    if (residual != nullptr) {
      load(residual + i, term);
      add_to(term, v);
    }
    store(v, y + i);
  }
  template <int kCount>
  __device__ static void add_to(const float (&term)[kCount], float (&v)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = v[j] + term[j];
  }
};

inline constexpr int kSumTokens = 64;    ///< tokens of one part of a sum over tokens
inline constexpr int kPartThreads = 64;  ///< each has a group of columns

/// parts[(block · kSums + s) · width + column] = Σ over the block's tokens, ascending. terms.add<kAligned>(t, column,
/// count, sums) adds token t's terms for a group of columns. Grid: (groups of columns, blocks of tokens).
template <bool kAligned, class Terms>
__global__ __launch_bounds__(kPartThreads) void column_parts(Terms terms, std::int64_t tokens, std::int64_t width,
                                                             float* parts) {
  constexpr int kSums = Terms::kSums;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kPartThreads + threadIdx.x) * kGroup;
  if (column >= width) return;
  const int count = static_cast<int>(width - column < kGroup ? width - column : kGroup);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kSumTokens;
  const std::int64_t last = tokens - first < kSumTokens ? tokens : first + kSumTokens;
  float sums[kSums][kGroup] = {};
#pragma unroll 4
  for (std::int64_t t = first; t < last; ++t) terms.template add<kAligned>(t, column, count, sums);
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    store_part<kAligned>(sums[s], count, parts + (static_cast<std::int64_t>(blockIdx.y) * kSums + s) * width + column);
  }
}

/// sum[i] = Σ over blocks ascending of parts[block · stride + i], from zero, as the CPU's sum_parts.
struct SumParts {
  const float* parts;
  std::int64_t stride, blocks;
  float* sum;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float total[kCount] = {}, part[kCount];
    for (std::int64_t b = 0; b < blocks; ++b) {
      load(parts + b * stride + i, part);
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[j] = total[j] + part[j];
    }
    store(total, sum + i);
  }
};

template <class Terms>
void launch_column_parts(const char* name, const Terms& terms, bool on_boundaries, std::int64_t tokens,
                         std::int64_t width, float* parts, cudaStream_t stream) {
  const dim3 grid(blocks_for(width, kPartThreads * kGroup), blocks_for(tokens, kSumTokens));
  const auto kernel = on_boundaries ? column_parts<true, Terms> : column_parts<false, Terms>;
  launch(name, kernel, grid, kPartThreads, 0, stream, terms, tokens, width, parts);
}

/// One element a thread: few columns, many parts.
inline void launch_sum_parts(const float* parts, std::int64_t stride, std::int64_t blocks, std::int64_t width,
                             float* sum, cudaStream_t stream) {
  launch_elementwise("sum_parts", SumParts{parts, stride, blocks, sum}, Span{width, width, 0}, stream);
}

/// Terms of column_sum.
template <class T>
struct ColumnTerms {
  static constexpr int kSums = 1;
  const T* dy;
  std::int64_t ld;
  template <bool kAligned>
  __device__ void add(std::int64_t t, std::int64_t column, int count, float (&sums)[1][kGroup]) const {
    float v[kGroup];
    load_part<kAligned>(dy + t * ld + column, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) sums[0][j] = sums[0][j] + v[j];
  }
};

}  // namespace transload::kernels::cuda
