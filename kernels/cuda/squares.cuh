// Sums of squares per run of 128 elements, in the order of kernels/cpu/exact_sum.h: eight lanes, lane i takes elements
// i, i+8, …; then ((0+4)+(2+6))+((1+5)+(3+7)).
#pragma once

#include "kernels/cuda/elements.cuh"

namespace transload::kernels::cuda {

inline constexpr int kRun = 128, kLanes = 8;
inline constexpr int kSquareThreads = 256;
inline constexpr int kRunsOfBlock = kSquareThreads / kLanes;
inline constexpr int kRunPitch = kRun + kLanes;  ///< the four runs of a warp lie in different banks

/// Elements from `first` into the tile, 16 bytes an access, zeros behind the end: they change no lane.
template <bool kAligned, class T>
__device__ inline void load_runs(const T* g, std::int64_t n, std::int64_t first, float* tile) {
  for (int group = static_cast<int>(threadIdx.x); group < kRunsOfBlock * (kRun / kGroup); group += kSquareThreads) {
    const std::int64_t at = first + group * kGroup;
    const std::int64_t left = n - at;
    float v[kGroup];
    load_part<kAligned>(g + at, static_cast<int>(left < 0 ? 0 : left < kGroup ? left : kGroup), v);
    float* const to = tile + group / (kRun / kGroup) * kRunPitch + group % (kRun / kGroup) * kGroup;
    store(v, to);
  }
}

template <bool kAligned, class T>
__global__ __launch_bounds__(kSquareThreads) void square_runs(const T* g, std::int64_t n, double* sums,
                                                              std::uint32_t* not_finite) {
  TRANSLOAD_SHARED(float4, tile_groups, kRunsOfBlock * kRunPitch / 4);
  auto* const tile = reinterpret_cast<float*>(tile_groups);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRunsOfBlock * kRun;
  load_runs<kAligned>(g, n, first, tile);
  __syncthreads();
  const int run = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kRun / kLanes; ++i) {
    const double x = tile[run * kRunPitch + i * kLanes + lane];
    sum = __fma_rn(x, x, sum);
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  if (lane != 0 || first + run * kRun >= n) return;
  sums[static_cast<std::int64_t>(blockIdx.x) * kRunsOfBlock + run] = sum;
  // Squares of finite floats stay far from overflow in fp64. All who write the flag write the same.
  if (!(sum <= 1.7976931348623157e308)) *not_finite = 1;
}

}  // namespace transload::kernels::cuda
