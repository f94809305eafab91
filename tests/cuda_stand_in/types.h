// The part of the CUDA language that the project's kernels use, as plain C++: qualifiers, vector types, the names that
// a stream and an error go by. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// __shared__ is left out on purpose: kernels say TRANSLOAD_SHARED (kernels/cuda/launch.h), whose memory is poisoned.

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

using cudaStream_t = struct CUstream_st*;
