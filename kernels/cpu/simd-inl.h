// Vectors of fp32 over arrays of float or bf16, once for each instruction set (include after foreach_target.h).
// Loads widen, stores round to nearest even (NaN becomes 0x7FC0), tails go through a buffer on the stack, so that a
// value's bits do not depend on where in an array it lies.
#if defined(TRANSLOAD_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANSLOAD_KERNELS_SIMD_INL_H
#undef TRANSLOAD_KERNELS_SIMD_INL_H
#else
#define TRANSLOAD_KERNELS_SIMD_INL_H
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using DU16 = hn::Rebind<std::uint16_t, D>;
constexpr std::size_t kMaxLanes = hn::MaxLanes(D());

HWY_INLINE HWY_ATTR V load(const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE HWY_ATTR V load(const bf16* p) {
  const auto bits = hn::PromoteTo(DU(), hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(p)));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}
HWY_INLINE HWY_ATTR void store(V v, float* p) { hn::StoreU(v, D(), p); }
/// The bits of round_to_bf16 in the upper half of each lane, the lower half zero.
HWY_INLINE HWY_ATTR hn::Vec<DU> rounded_bits(V v) {
  const DU du;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto rounded = hn::And(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFFu))), hn::Set(du, 0xFFFF0000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7FC00000u), rounded);
}
HWY_INLINE HWY_ATTR void store(V v, bf16* p) {
  const auto bits = hn::BitCast(DI(), hn::ShiftRight<16>(rounded_bits(v)));
  hn::StoreU(hn::DemoteTo(DU16(), bits), DU16(), reinterpret_cast<std::uint16_t*>(p));
}

/// The first `count` lanes; the others are zero (load) or left alone (store).
template <class T>
HWY_INLINE HWY_ATTR V load(const T* p, std::size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(D()))) return load(p);
  T part[kMaxLanes] = {};
  std::memcpy(part, p, count * sizeof(T));
  return load(part);
}
template <class T>
HWY_INLINE HWY_ATTR void store(V v, T* p, std::size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(D()))) {
    store(v, p);
    return;
  }
  T part[kMaxLanes];
  store(v, part);
  std::memcpy(p, part, count * sizeof(T));
}

/// fn(first, count) for vectors of elements [0, n), the last one perhaps short.
template <class Fn>
HWY_INLINE HWY_ATTR void for_vectors(std::int64_t n, Fn&& fn) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(i, static_cast<std::size_t>(lanes));
  if (i < n) fn(i, static_cast<std::size_t>(n - i));
}

HWY_INLINE HWY_ATTR float sum_of_lanes(V v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }

/// e^x for x ≤ 88 (NaN stays NaN), to within 2 ulps; below −87.3, where results would be denormal, 0. Cephes'
/// polynomial on [−ln2/2, ln2/2].
HWY_INLINE HWY_ATTR V exp_of_bounded(V x) {
  const D d;
  const DI di;
  // Adding 1.5·2^23 leaves the nearest integer n in the low bits of the sum.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V result = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  // A NaN's payload would have gone into the exponent.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), result));
}

/// e^x for any x: infinity above 88.
HWY_INLINE HWY_ATTR V exp_of(V x) {
  const D d;
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.0f)), hn::Set(d, HUGE_VALF), exp_of_bounded(x));
}

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();
#endif
