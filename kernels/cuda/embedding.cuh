// Rows of the embedding table: gather, and its deterministic transpose.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace transload::kernels::cuda {

/// kCount elements as they are, a NaN's payload included.
template <int kCount, class T>
__device__ inline void copy(const T* from, T* to) {
  if constexpr (kCount == 1) {
    *to = *from;
  } else {
#pragma unroll
    for (int j = 0; j < static_cast<int>(kCount * sizeof(T) / sizeof(uint4)); ++j) {
      reinterpret_cast<uint4*>(to)[j] = reinterpret_cast<const uint4*>(from)[j];
    }
  }
}
template <int kCount, class T>
__device__ inline void add_to(const T* from, T* to) {
  float v[kCount], before[kCount];
  load(from, v);
  load(to, before);
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] = before[j] + v[j];
  store(v, to);
}

/// One block a token; `table` holds elements [begin, end). kAligned: groups lie wholly inside or wholly outside, and on
/// 16-byte boundaries.
template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void gather_rows(const std::int32_t* ids, std::int64_t width, const T* table,
                                                           std::int64_t begin, std::int64_t end, bool add, T* x) {
  constexpr int kCount = kAligned ? kGroup : 1;
  const std::int64_t row = ids[blockIdx.x] * width;
  T* const to = x + static_cast<std::int64_t>(blockIdx.x) * width;
  for (std::int64_t column = threadIdx.x * kCount; column < width; column += blockDim.x * kCount) {
    const std::int64_t element = row + column;
    if (element < begin || element >= end) continue;
    if (add) {
      add_to<kCount>(table + (element - begin), to + column);
    } else {
      copy<kCount>(table + (element - begin), to + column);
    }
  }
}

/// out[i] = Σ over tokens ascending whose row holds element begin + i. A group lies in one row.
template <class T>
struct ScatterRows {
  const std::int32_t* ids;
  EmbeddingIndex index;
  std::int64_t tokens, width;
  const T* dx;
  std::int64_t begin;
  float* out;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    const std::int64_t row = (begin + i) / width, column = (begin + i) % width;
    float sum[kCount] = {};
    if (index.ids == nullptr) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (ids[t] == row) add_token(t, column, sum);
      }
    } else {
      for (std::int64_t k = first_of(row); k < tokens && index.ids[k] == row; ++k) {
        add_token(index.tokens[k], column, sum);
      }
    }
    store(sum, out + i);
  }
  template <int kCount>
  __device__ void add_token(std::int64_t token, std::int64_t column, float (&sum)[kCount]) const {
    float v[kCount];
    load(dx + token * width + column, v);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] = sum[j] + v[j];
  }
  /// The first place of the index whose id is `row` or more.
  __device__ std::int64_t first_of(std::int64_t row) const {
    std::int64_t low = 0, high = tokens;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (index.ids[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

}  // namespace transload::kernels::cuda
