#include "kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

#ifndef TRANSLOAD_KERNELS_ATTENTION_ROWS_ONCE
#define TRANSLOAD_KERNELS_ATTENTION_ROWS_ONCE
namespace transload::kernels {

template <class T>
struct HeadRowKernels {
  void (*divide)(const float* acc, std::int64_t n, float divisor, T* to);
  float (*dot)(const T* a, const T* b, std::int64_t n);
};
struct AttentionTable {
  std::tuple<AttentionRowKernels<float, float>, AttentionRowKernels<bf16, float>, AttentionRowKernels<bf16, bf16>>
      scores;
  std::tuple<HeadRowKernels<float>, HeadRowKernels<bf16>> heads;
  void (*scale)(float* acc, std::int64_t n, float factor);
};

}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

template <class T, class P>
HWY_INLINE HWY_ATTR void store_rounded(V v, P* p) {
  if constexpr (std::is_same_v<T, P>) {
    store(v, p);
  } else {
    store(hn::BitCast(D(), rounded_bits(v)), p);
  }
}

// Lanes beyond `valid` may hold anything: they are masked before they are used.
template <class T, class P>
HWY_ATTR float forward_scores(const float* s, std::int64_t valid, std::int64_t columns, float scale, float& max,
                              float& sum, P* p) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V scaled_by = hn::Set(d, scale), lowest = hn::Set(d, -HUGE_VALF);
  V top = hn::Set(d, max);
  std::int64_t i = 0;
  for (; i + lanes <= valid; i += lanes) top = hn::Max(top, hn::Mul(load(s + i), scaled_by));
  if (i < valid) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(valid - i));
    top = hn::Max(top, hn::IfThenElse(mask, hn::Mul(load(s + i), scaled_by), lowest));
  }
  const float new_max = hn::GetLane(hn::MaxOfLanes(d, top));
  const V shift = hn::Set(d, new_max);
  V total = hn::Zero(d);
  for (i = 0; i + lanes <= valid; i += lanes) {
    const V e = exp_of_bounded(hn::MulSub(load(s + i), scaled_by, shift));
    total = hn::Add(total, e);
    store_rounded<T>(e, p + i);
  }
  if (i < valid) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(valid - i));
    const V e = hn::IfThenElseZero(mask, exp_of_bounded(hn::MulSub(load(s + i), scaled_by, shift)));
    total = hn::Add(total, e);
    store_rounded<T>(e, p + i);
    i += lanes;
  }
  for (; i < columns; i += lanes) store(hn::Zero(d), p + i);
  const float earlier = std::exp(max - new_max);
  sum = sum * earlier + sum_of_lanes(total);
  max = new_max;
  return earlier;
}

template <class T, class P>
HWY_ATTR void backward_scores(const float* s, const float* dp, std::int64_t valid, std::int64_t columns, float scale,
                              float lse, float delta, P* p, P* ds) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V scaled_by = hn::Set(d, scale), shift = hn::Set(d, lse), less = hn::Set(d, delta);
  std::int64_t i = 0;
  for (; i + lanes <= valid; i += lanes) {
    const V e = exp_of_bounded(hn::MulSub(load(s + i), scaled_by, shift));
    const V slope = hn::Mul(hn::Mul(e, hn::Sub(load(dp + i), less)), scaled_by);
    store_rounded<T>(e, p + i);
    store_rounded<T>(slope, ds + i);
  }
  if (i < valid) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(valid - i));
    const V e = exp_of_bounded(hn::MulSub(load(s + i), scaled_by, shift));
    const V slope = hn::Mul(hn::Mul(e, hn::Sub(load(dp + i), less)), scaled_by);
    store_rounded<T>(hn::IfThenElseZero(mask, e), p + i);
    store_rounded<T>(hn::IfThenElseZero(mask, slope), ds + i);
    i += lanes;
  }
  for (; i < columns; i += lanes) {
    store(hn::Zero(d), p + i);
    store(hn::Zero(d), ds + i);
  }
}

HWY_ATTR void scale_row(float* acc, std::int64_t count, float factor) {
  const V f = hn::Set(D(), factor);
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR { store(hn::Mul(load(acc + i, n), f), acc + i, n); });
}

template <class T>
HWY_ATTR void divide_row(const float* acc, std::int64_t count, float divisor, T* to) {
  const V by = hn::Set(D(), divisor);
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR { store(hn::Div(load(acc + i, n), by), to + i, n); });
}

template <class T>
HWY_ATTR float dot_row(const T* a, const T* b, std::int64_t count) {
  V sum = hn::Zero(D());
  for_vectors(count,
              [&](std::int64_t i, std::size_t n) HWY_ATTR { sum = hn::MulAdd(load(a + i, n), load(b + i, n), sum); });
  return sum_of_lanes(sum);
}

AttentionTable attention_table() {
  return {{{&forward_scores<float, float>, &backward_scores<float, float>},
           {&forward_scores<bf16, float>, &backward_scores<bf16, float>},
           {&forward_scores<bf16, bf16>, &backward_scores<bf16, bf16>}},
          {{&divide_row<float>, &dot_row<float>}, {&divide_row<bf16>, &dot_row<bf16>}},
          &scale_row};
}

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(attention_table);

const AttentionTable& table() {
  static const AttentionTable chosen = HWY_DYNAMIC_DISPATCH(attention_table)();
  return chosen;
}

}  // namespace

template <class T, class P>
const AttentionRowKernels<T, P>& attention_row_kernels() {
  return std::get<AttentionRowKernels<T, P>>(table().scores);
}
template const AttentionRowKernels<float, float>& attention_row_kernels();
template const AttentionRowKernels<bf16, float>& attention_row_kernels();
template const AttentionRowKernels<bf16, bf16>& attention_row_kernels();

void scale_row(float* acc, std::int64_t n, float factor) { table().scale(acc, n, factor); }

template <class T>
void divide_row(const float* acc, std::int64_t n, float divisor, T* to) {
  std::get<HeadRowKernels<T>>(table().heads).divide(acc, n, divisor, to);
}
template void divide_row(const float*, std::int64_t, float, float*);
template void divide_row(const float*, std::int64_t, float, bf16*);

template <class T>
float dot_row(const T* a, const T* b, std::int64_t n) {
  return std::get<HeadRowKernels<T>>(table().heads).dot(a, b, n);
}
template float dot_row(const float*, const float*, std::int64_t);
template float dot_row(const bf16*, const bf16*, std::int64_t);

}  // namespace transload::kernels
#endif
