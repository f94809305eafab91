// Device functions that kernels call: the IEEE ones by the processor's own operations (compiled without contraction),
// warp shuffles by the fibers. For tests only.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "fibers.h"

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

/// Each lane of `mask` must come, each gives a value and takes another lane's.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return stand_in::exchange(mask, value, stand_in::lane() ^ static_cast<unsigned>(distance));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  const unsigned from = stand_in::lane() + distance;
  return stand_in::exchange(mask, value, from < 32 ? from : stand_in::lane());
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return stand_in::exchange(mask, value, static_cast<unsigned>(from) % 32);
}

/// Blocks and their fibers run one after another.
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long v) {
  const unsigned long long before = *at;
  *at = before + v;
  return before;
}
