// The sum over ranks (src/comm/tree_sum.h): a fixed binary tree by rank, in fp32, rounded once.
#pragma once

#include "kernels/cuda/elementwise.cuh"

namespace transload::kernels::cuda {

inline constexpr int kTreeLevels = 11;  ///< 1024 ranks; known at compile time, so that the levels are registers

template <class T>
struct TreeSum {
  const T* pieces;
  std::int64_t stride;
  int count;
  T* out;

  /// A binary counter: after rank r, level l holds the sum of a whole subtree where bit l of r + 1 is set.
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float level[kTreeLevels][kCount] = {}, v[kCount] = {};
    for (int r = 0; r < count; ++r) {
      load(pieces + r * stride + i, v);
      bool placed = false;
#pragma unroll
      for (int l = 0; l < kTreeLevels; ++l) {
        if (placed) continue;
        placed = (r >> l & 1) == 0;
        if (placed)
          copy(v, level[l]);
        else
          add_left(level[l], v);
      }
    }
    bool first = true;
#pragma unroll
    for (int l = 0; l < kTreeLevels; ++l) {
      if ((count >> l & 1) == 0) continue;
      if (first)
        copy(level[l], v);
      else
        add_left(level[l], v);
      first = false;
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = v[j] != v[j] ? __uint_as_float(0x7FC00000u) : v[j];
    store(v, out + i);
  }
  template <int kCount>
  __device__ static void copy(const float (&from)[kCount], float (&to)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = from[j];
  }
  template <int kCount>
  __device__ static void add_left(const float (&left)[kCount], float (&v)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = left[j] + v[j];
  }
};

}  // namespace transload::kernels::cuda
