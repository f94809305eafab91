// The sequence of kernels/cpu/adamw.h. Weight + residue arrive and leave as 16-bit planes.
#pragma once

#include "kernels/cpu/adamw.h"
#include "kernels/cuda/elementwise.cuh"

namespace transload::kernels::cuda {

__device__ inline float one_nan(float v) { return v != v ? __uint_as_float(0x7FC00000u) : v; }

/// The master as weight + residue (base/dtype.h: split_master, join_master) …
struct MasterSplit {
  bf16* weight;
  std::int16_t* residue;
  template <int kCount>
  __device__ void get(std::int64_t i, float (&master)[kCount]) const {
    unsigned w[kCount], r[kCount];
    load_bits(weight + i, w);
    load_bits(residue + i, r);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const unsigned extended = (r[j] ^ 0x8000u) - 0x8000u;
      master[j] = __uint_as_float((w[j] << 16) + extended);
    }
  }
  template <int kCount>
  __device__ void set(const float (&master)[kCount], std::int64_t i) const {
    unsigned w[kCount], r[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      r[j] = __float_as_uint(one_nan(master[j]));
      w[j] = (r[j] + 0x8000u) >> 16;
    }
    store_bits(w, weight + i);
    store_bits(r, residue + i);
  }
};
/// … or as itself.
struct MasterF32 {
  float* weight;
  template <int kCount>
  __device__ void get(std::int64_t i, float (&master)[kCount]) const {
    load(weight + i, master);
  }
  template <int kCount>
  __device__ void set(float (&master)[kCount], std::int64_t i) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) master[j] = one_nan(master[j]);
    store(master, weight + i);
  }
};

template <class Master, class G>
struct Adamw {
  Master master;
  float* moment1;
  float* moment2;
  const G* gradient;
  AdamwCoefficients c;
  float gradient_scale;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], m[kCount], v[kCount], p[kCount];
    load(gradient + i, g);
    load(moment1 + i, m);
    load(moment2 + i, v);
    master.get(i, p);
#pragma unroll
    for (int j = 0; j < kCount; ++j) update(g[j], m[j], v[j], p[j]);
    store(m, moment1 + i);
    store(v, moment2 + i);
    master.set(p, i);
  }
  __device__ void update(float g, float& m, float& v, float& p) const {
    g = __fmul_rn(g, gradient_scale);
    m = __fmaf_rn(c.one_minus_beta1, __fsub_rn(g, m), m);
    v = __fmaf_rn(c.one_minus_beta2, __fmul_rn(g, g), __fmul_rn(c.beta2, v));
    p = __fmul_rn(p, c.decay);
    const float denominator = __fmaf_rn(__fsqrt_rn(v), c.inverse_sqrt_correction2, c.epsilon);
    p = __fmaf_rn(-c.step_size, __fdiv_rn(m, denominator), p);
    m = one_nan(m);
    v = one_nan(v);
  }
};

}  // namespace transload::kernels::cuda
