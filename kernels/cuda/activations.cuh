// SwiGLU and GELU, forward and backward: the sequences of kernels/cpu/activations.cpp.
#pragma once

#include "kernels/cpu/layers.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/math.cuh"

namespace transload::kernels::cuda {

template <class T>
struct Swiglu {
  const T* gate;
  const T* up;
  T* y;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], u[kCount];
    load(gate + i, g);
    load(up + i, u);
#pragma unroll
    for (int j = 0; j < kCount; ++j) g[j] = __fmul_rn(__fmul_rn(g[j], sigmoid(g[j])), u[j]);
    store(g, y + i);
  }
};

/// silu'(g) = s + g·s·(1 − s) with s = sigmoid(g).
template <class T>
struct SwigluBackward {
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float g[kCount], u[kCount], d[kCount];
    load(gate + i, g);
    load(up + i, u);
    load(dy + i, d);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float s = sigmoid(g[j]);
      const float slope = __fmul_rn(s, __fmaf_rn(g[j], __fsub_rn(1.0f, s), 1.0f));
      const float to_up = __fmul_rn(d[j], __fmul_rn(g[j], s));
      g[j] = __fmul_rn(__fmul_rn(d[j], u[j]), slope);
      u[j] = to_up;
    }
    store(g, dgate + i);
    store(u, dup + i);
  }
};

/// 2·√(2/π)·(x + 0.044715·x³): ½·(1 + tanh(u)) = sigmoid(2u).
__device__ inline float twice_inner(float x) {
  return __fmul_rn(__fmul_rn(x, 1.5957691216057308f), __fmaf_rn(__fmul_rn(x, x), 0.044715f, 1.0f));
}

template <Gelu kKind>
__device__ inline float gelu_of(float x) {
  const float gate = kKind == Gelu::tanh ? sigmoid(twice_inner(x)) : normal(x).cumulative;
  // −∞ · 0 is the limit 0, a large negative x underflows to it.
  return gate == 0.0f ? 0.0f : __fmul_rn(x, gate);
}

template <Gelu kKind>
__device__ inline float gelu_slope(float x) {
  if constexpr (kKind == Gelu::tanh) {
    const float s = sigmoid(twice_inner(x));
    const float inner_slope = __fmul_rn(1.5957691216057308f, __fmaf_rn(__fmul_rn(x, x), 3 * 0.044715f, 1.0f));
    const float bend = __fmul_rn(s, __fsub_rn(1.0f, s));
    // Where the bend has underflowed, x² may have overflowed.
    return __fadd_rn(s, bend == 0.0f ? 0.0f : __fmul_rn(__fmul_rn(x, bend), inner_slope));
  } else {
    const Normal at = normal(x);
    const float product = __fmul_rn(__fmul_rn(x, 0.3989422804014327f), at.bell);
    return __fadd_rn(at.cumulative, at.bell == 0.0f ? 0.0f : product);
  }
}

template <Gelu kKind, class T>
struct GeluForward {
  const T* x;
  T* y;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float v[kCount];
    load(x + i, v);
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = gelu_of<kKind>(v[j]);
    store(v, y + i);
  }
};

template <Gelu kKind, class T>
struct GeluBackward {
  const T* x;
  const T* dy;
  T* dx;
  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float v[kCount], d[kCount];
    load(x + i, v);
    load(dy + i, d);
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = __fmul_rn(d[j], gelu_slope<kKind>(v[j]));
    store(v, dx + i);
  }
};

}  // namespace transload::kernels::cuda
