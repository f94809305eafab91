// Element-wise kernels over rows: conversion, addition, rounding with bias and residual, sums of columns, rotary
// embedding.
#include <cmath>
#include <tuple>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

#ifndef TRANSLOAD_KERNELS_ROWS_ONCE
#define TRANSLOAD_KERNELS_ROWS_ONCE
namespace transload::kernels {

template <class T>
struct RowKernels {
  void (*add)(const T* a, const T* b, T* y, std::int64_t n);
  void (*round_row)(const float* acc, const float* bias, const T* residual, T* y, std::int64_t n);
  void (*add_to)(const T* row, float* sum, std::int64_t n);
  void (*rotate)(T* head, const float* cos, const float* sin, std::int64_t half, float sign);
  void (*widen)(const T* from, float* to, std::int64_t n);
};
using RowTable = std::tuple<RowKernels<float>, RowKernels<bf16>>;

}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

template <class T>
HWY_ATTR void add_row(const T* a, const T* b, T* y, std::int64_t count) {
  for_vectors(
      count, [&](std::int64_t i, std::size_t n) HWY_ATTR { store(hn::Add(load(a + i, n), load(b + i, n)), y + i, n); });
}

template <class T>
HWY_ATTR void round_row(const float* acc, const float* bias, const T* residual, T* y, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    V v = load(acc + i, n);
    if (bias != nullptr) v = hn::Add(v, load(bias + i, n));
    if (residual != nullptr) v = hn::Add(v, load(residual + i, n));
    store(v, y + i, n);
  });
}

template <class T>
HWY_ATTR void add_to(const T* row, float* sum, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n)
                         HWY_ATTR { store(hn::Add(load(sum + i, n), load(row + i, n)), sum + i, n); });
}

// Pairs (i, i + half) of one head turned by the angle of (cos, sign · sin).
template <class T>
HWY_ATTR void rotate(T* head, const float* cos, const float* sin, std::int64_t half, float sign) {
  const V turn = hn::Set(D(), sign);
  for_vectors(half, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    const V c = load(cos + i, n), s = hn::Mul(load(sin + i, n), turn);
    const V x = load(head + i, n), y = load(head + half + i, n);
    store(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), head + i, n);
    store(hn::MulAdd(x, s, hn::Mul(y, c)), head + half + i, n);
  });
}

template <class T>
HWY_ATTR void widen_row(const T* from, float* to, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR { store(load(from + i, n), to + i, n); });
}

template <class T>
RowKernels<T> row_kernels() {
  return {&add_row<T>, &round_row<T>, &add_to<T>, &rotate<T>, &widen_row<T>};
}
RowTable row_table() { return {row_kernels<float>(), row_kernels<bf16>()}; }

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(row_table);
constexpr std::int64_t kBlock = 1 << 15;  // elements of one task
constexpr std::int64_t kSumTokens = 64;

template <class T>
const RowKernels<T>& kernels() {
  static const RowTable table = HWY_DYNAMIC_DISPATCH(row_table)();
  return std::get<RowKernels<T>>(table);
}

}  // namespace

void widen_row(const bf16* from, float* to, std::int64_t n) { kernels<bf16>().widen(from, to, n); }

template <class T>
void round_row(const float* acc, const float* bias, T* y, std::int64_t n) {
  kernels<T>().round_row(acc, bias, nullptr, y, n);
}

void sum_parts(const float* parts, std::int64_t stride, std::int64_t blocks, std::int64_t begin, std::int64_t end,
               float* sum) {
  std::fill(sum + begin, sum + end, 0.0f);
  for (std::int64_t b = 0; b < blocks; ++b)
    kernels<float>().add_to(parts + b * stride + begin, sum + begin, end - begin);
}

template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<T>().add(a + begin, b + begin, y + begin, end - begin);
  });
}

template <class T>
void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens, std::int64_t width) {
  parallel_blocks(tokens, rows_in_block(width, kBlock), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T* r = residual == nullptr ? nullptr : residual + t * width;
      kernels<T>().round_row(acc + t * width, bias, r, y + t * width, width);
    }
  });
}

template <class T>
void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width, std::byte* scratch) {
  auto* parts = reinterpret_cast<float*>(scratch);
  parallel_blocks(tokens, kSumTokens, [&](std::int64_t begin, std::int64_t end) {
    float* part = parts + begin / kSumTokens * width;
    std::fill(part, part + width, 0.0f);
    for (std::int64_t t = begin; t < end; ++t) kernels<T>().add_to(dy + t * ld, part, width);
  });
  const std::int64_t blocks = (tokens + kSumTokens - 1) / kSumTokens;
  parallel_blocks(width, 1024,
                  [&](std::int64_t begin, std::int64_t end) { sum_parts(parts, width, blocks, begin, end, db); });
}

void widen(const bf16* from, float* to, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<bf16>().widen(from + begin, to + begin, end - begin);
  });
}

void narrow(const float* from, bf16* to, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<bf16>().round_row(from + begin, nullptr, nullptr, to + begin, end - begin);
  });
}

template <class T>
void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads, std::int64_t head_dim,
            const float* cos, const float* sin, bool inverse) {
  const std::int64_t half = head_dim / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  parallel_blocks(tokens, rows_in_block(heads * head_dim, kBlock), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t angle = t % length * half;
      for (std::int64_t h = 0; h < heads; ++h) {
        kernels<T>().rotate(x + t * ld + h * head_dim, cos + angle, sin + angle, half, sign);
      }
    }
  });
}

template void round_row(const float*, const float*, float*, std::int64_t);
template void round_row(const float*, const float*, bf16*, std::int64_t);
template void add(const float*, const float*, float*, std::int64_t);
template void add(const bf16*, const bf16*, bf16*, std::int64_t);
template void round_rows(const float*, const float*, const float*, float*, std::int64_t, std::int64_t);
template void round_rows(const float*, const float*, const bf16*, bf16*, std::int64_t, std::int64_t);
template void column_sum(const float*, std::int64_t, float*, std::int64_t, std::int64_t, std::byte*);
template void column_sum(const bf16*, std::int64_t, float*, std::int64_t, std::int64_t, std::byte*);
template void rotary(float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                     const float*, bool);
template void rotary(bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                     const float*, bool);

}  // namespace transload::kernels
#endif
