// One block for a row: which elements a thread takes, and sums and maxima over the block in a fixed tree. The bits are
// a function of the row's width alone.
#pragma once

#include "kernels/cuda/elements.cuh"

namespace transload::kernels::cuda {

inline constexpr int kRowThreads = 256;  ///< at most
inline constexpr int kRowWarps = kRowThreads / 32;

/// Threads for a row of `width` elements: a group each, in whole warps, as far as they go.
inline unsigned row_threads(std::int64_t width) {
  const std::int64_t warps = (width + 32 * kGroup - 1) / (32 * kGroup);
  return static_cast<unsigned>(32 * (warps < 1 ? 1 : warps < kRowWarps ? warps : kRowWarps));
}

/// fn(first, count) for this thread's groups of [0, width), ascending.
template <class Fn>
__device__ inline void for_groups(std::int64_t width, const Fn& fn) {
  const std::int64_t stride = static_cast<std::int64_t>(blockDim.x) * kGroup;
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * kGroup; i < width; i += stride) {
    fn(i, static_cast<int>(width - i < kGroup ? width - i : kGroup));
  }
}

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v = v + __shfl_xor_sync(0xFFFFFFFFu, v, distance);
  return v;
}
/// NaN is passed over, as by the CPU: sums find it.
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, distance));
  return v;
}

/// Σ of v over the block, in every thread. `partial`: kRowWarps values of shared memory for this sum alone.
__device__ inline float block_sum(float v, float* partial) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = partial[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) sum = sum + partial[w];
  return sum;
}
__device__ inline float block_max(float v, float* partial) {
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float max = partial[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) max = fmaxf(max, partial[w]);
  return max;
}

}  // namespace transload::kernels::cuda
