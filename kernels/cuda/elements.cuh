// Groups of eight elements between memory and registers, as fp32: bf16 in one access of 16 bytes, fp32 in two. Compiled
// without contraction, so that +, − and · round; fma is written out.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/launch.h"

namespace transload::kernels::cuda {

inline constexpr int kGroup = 8;

__device__ inline float widened(float v) { return v; }
__device__ inline float widened(bf16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }

/// Bits of round_to_bf16: nearest even, any NaN 0x7FC0.
__device__ inline unsigned rounded_bits(float v) {
  const unsigned u = __float_as_uint(v);
  return v != v ? 0x7FC0u : (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
__device__ inline void put(float v, float* to) { *to = v; }
__device__ inline void put(float v, bf16* to) { to->bits = static_cast<std::uint16_t>(rounded_bits(v)); }

/// kCount elements: one, any alignment, or a group on a 16-byte boundary.
template <int kCount>
__device__ inline void load(const float* p, float (&v)[kCount]) {
  if constexpr (kCount == 1) {
    v[0] = *p;
  } else {
    const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
}
/// kCount 16-bit values, zero-extended.
template <int kCount, class U16>
__device__ inline void load_bits(const U16* p, unsigned (&v)[kCount]) {
  static_assert(sizeof(U16) == 2);
  if constexpr (kCount == 1) {
    v[0] = *reinterpret_cast<const std::uint16_t*>(p);
  } else {
    const uint4 a = *reinterpret_cast<const uint4*>(p);
    v[0] = a.x & 0xFFFFu, v[1] = a.x >> 16, v[2] = a.y & 0xFFFFu, v[3] = a.y >> 16;
    v[4] = a.z & 0xFFFFu, v[5] = a.z >> 16, v[6] = a.w & 0xFFFFu, v[7] = a.w >> 16;
  }
}
template <int kCount>
__device__ inline void load(const bf16* p, float (&v)[kCount]) {
  unsigned bits[kCount];
  load_bits(p, bits);
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = __uint_as_float(bits[i] << 16);
}

template <int kCount>
__device__ inline void store(const float (&v)[kCount], float* p) {
  if constexpr (kCount == 1) {
    *p = v[0];
  } else {
    reinterpret_cast<float4*>(p)[0] = float4{v[0], v[1], v[2], v[3]};
    reinterpret_cast<float4*>(p)[1] = float4{v[4], v[5], v[6], v[7]};
  }
}
/// The low 16 bits of each.
template <int kCount, class U16>
__device__ inline void store_bits(const unsigned (&v)[kCount], U16* p) {
  static_assert(sizeof(U16) == 2);
  if constexpr (kCount == 1) {
    *reinterpret_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(v[0]);
  } else {
    *reinterpret_cast<uint4*>(p) = uint4{(v[0] & 0xFFFFu) | v[1] << 16, (v[2] & 0xFFFFu) | v[3] << 16,
                                         (v[4] & 0xFFFFu) | v[5] << 16, (v[6] & 0xFFFFu) | v[7] << 16};
  }
}
template <int kCount>
__device__ inline void store(const float (&v)[kCount], bf16* p) {
  unsigned bits[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits[i] = rounded_bits(v[i]);
  store_bits(bits, p);
}

/// The first `count` of a group, in one access where that is allowed (kAligned); the others are zero (load_part) or
/// left alone (store_part).
template <bool kAligned, class T>
__device__ inline void load_part(const T* p, int count, float (&v)[kGroup]) {
  if (kAligned && count == kGroup) {
    load(p, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = i < count ? widened(p[i]) : 0.0f;
}
template <bool kAligned, class T>
__device__ inline void store_part(const float (&v)[kGroup], int count, T* p) {
  if (kAligned && count == kGroup) {
    store(v, p);
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (i < count) put(v[i], p + i);
  }
}

/// True where groups may start at each of the addresses.
template <class... P>
bool aligned(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace transload::kernels::cuda
