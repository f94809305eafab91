// Functions of fp32 by the sequences of kernels/cpu/simd-inl.h and activations.cpp, with fma: the CPU's bits, and the
// same bits whatever version of CUDA's own library. Without branches.
#pragma once

#include "kernels/cuda/launch.h"

namespace transload::kernels::cuda {

__device__ inline float infinity() { return __uint_as_float(0x7F800000u); }

/// e^x for x ≤ 88 (NaN stays NaN), to within 2 ulps; below −87.3 0. Cephes' polynomial on [−ln2/2, ln2/2].
__device__ inline float exp_of_bounded(float x) {
  // Adding 1.5·2^23 leaves the nearest integer n in the low bits of the sum.
  const float magic = 12582912.0f;
  const float shifted = __fmaf_rn(x, 1.44269504088896341f, magic);
  const float n = __fsub_rn(shifted, magic);
  float r = __fmaf_rn(-n, 0.693359375f, x);
  r = __fmaf_rn(-n, -2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  const float result = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
  // A NaN's payload would have gone into the exponent.
  return x != x ? x : x < -87.3f ? 0.0f : result;
}
/// e^x for any x: infinity above 88.
__device__ inline float exp_of(float x) { return x > 88.0f ? infinity() : exp_of_bounded(x); }

__device__ inline float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_of(-x))); }

/// The normal distribution's Φ(x), and its density φ(x) without the factor 1/√(2π).
struct Normal {
  float cumulative, bell;
};
/// Φ(−|x|) = ½·e^(−x²/2)·t·P(t), t = 1/(1 + |x|/√8): the fit of kernels/cpu/activations.cpp.
__device__ inline Normal normal(float x) {
  const float t = __fdiv_rn(1.0f, __fmaf_rn(fabsf(x), 0.353553390593f, 1.0f));
  float p = 0.0174617482865f;
  p = __fmaf_rn(p, t, -0.149686440919f);
  p = __fmaf_rn(p, t, 0.486789891082f);
  p = __fmaf_rn(p, t, -0.741037215886f);
  p = __fmaf_rn(p, t, 0.474895577568f);
  p = __fmaf_rn(p, t, -0.124030557699f);
  p = __fmaf_rn(p, t, 0.233335382004f);
  p = __fmaf_rn(p, t, 0.23721159444f);
  p = __fmaf_rn(p, t, 0.283001592011f);
  p = __fmaf_rn(p, t, 0.282058422352f);
  const float square = __fmul_rn(x, x);
  const float rest = fabsf(x) > 20.0f ? 0.0f : __fmaf_rn(x, x, -square);
  const float bell = __fmul_rn(exp_of_bounded(-__fmul_rn(square, 0.5f)), __fmaf_rn(-rest, 0.5f, 1.0f));
  const float tail = __fmul_rn(__fmul_rn(0.5f, bell), __fmul_rn(t, p));
  return {x > 0.0f ? __fsub_rn(1.0f, tail) : tail, bell};
}

}  // namespace transload::kernels::cuda
