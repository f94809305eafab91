// RMS norm and layer norm, forward and backward.
#include <cmath>
#include <tuple>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norms.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

#ifndef TRANSLOAD_KERNELS_NORMS_ONCE
#define TRANSLOAD_KERNELS_NORMS_ONCE
namespace transload::kernels {

/// Rows [begin, end) of a norm's arrays. centred: layer norm. Backward adds the rows' part of dweight and dbias.
template <class T>
struct NormRows {
  bool centred = false;
  std::int64_t width = 0;
  float eps = 0;
  const T* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  T* y = nullptr;
  const T* dy = nullptr;
  T* dx = nullptr;
  bool accumulate = false;
  float* dweight = nullptr;
  float* dbias = nullptr;
  std::int64_t begin = 0, end = 0;
};
template <class T>
struct NormKernels {
  void (*forward)(const NormRows<T>&);
  void (*backward)(const NormRows<T>&);
};
using NormTable = std::tuple<NormKernels<float>, NormKernels<bf16>>;

}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

struct Moments {
  float mean, rstd;
};

template <class T>
HWY_ATTR Moments moments(const T* x, std::int64_t width, bool centred, float eps) {
  const D d;
  float mean = 0;
  if (centred) {
    V sum = hn::Zero(d);
    for_vectors(width, [&](std::int64_t i, std::size_t n) HWY_ATTR { sum = hn::Add(sum, load(x + i, n)); });
    mean = sum_of_lanes(sum) / static_cast<float>(width);
  }
  V squares = hn::Zero(d);
  const V m = hn::Set(d, mean);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for_vectors(width / lanes * lanes, [&](std::int64_t i, std::size_t) HWY_ATTR {
    const V v = hn::Sub(load(x + i), m);
    squares = hn::MulAdd(v, v, squares);
  });
  float sum = sum_of_lanes(squares);
  for (std::int64_t i = width / lanes * lanes; i < width; ++i) {
    const float v = to_float(x[i]) - mean;
    sum += v * v;
  }
  return {mean, 1.0f / std::sqrt(sum / static_cast<float>(width) + eps)};
}

template <class T>
HWY_ATTR void norm_forward(const NormRows<T>& r) {
  const D d;
  for (std::int64_t t = r.begin; t < r.end; ++t) {
    const T* x = r.x + t * r.width;
    T* y = r.y + t * r.width;
    const Moments s = moments(x, r.width, r.centred, r.eps);
    const V mean = hn::Set(d, s.mean), rstd = hn::Set(d, s.rstd);
    for_vectors(r.width, [&](std::int64_t i, std::size_t n) HWY_ATTR {
      const V scaled = hn::Mul(hn::Mul(hn::Sub(load(x + i, n), mean), rstd), load(r.weight + i, n));
      store(r.centred ? hn::Add(scaled, load(r.bias + i, n)) : scaled, y + i, n);
    });
  }
}

// With xhat = (x − mean)·rstd and g = dy·weight: dx = rstd·(g − mean(g) − xhat·mean(g·xhat)), without mean(g) for RMS.
template <class T>
HWY_ATTR void norm_backward(const NormRows<T>& r) {
  const D d;
  for (std::int64_t t = r.begin; t < r.end; ++t) {
    const T* x = r.x + t * r.width;
    const T* dy = r.dy + t * r.width;
    T* dx = r.dx + t * r.width;
    const Moments s = moments(x, r.width, r.centred, r.eps);
    const V mean = hn::Set(d, s.mean), rstd = hn::Set(d, s.rstd);
    V sum_g = hn::Zero(d), sum_gx = hn::Zero(d);
    for_vectors(r.width, [&](std::int64_t i, std::size_t n) HWY_ATTR {
      const V gy = load(dy + i, n);
      const V xhat = hn::Mul(hn::Sub(load(x + i, n), mean), rstd);
      const V g = hn::Mul(gy, load(r.weight + i, n));
      sum_g = hn::Add(sum_g, g);
      sum_gx = hn::MulAdd(g, xhat, sum_gx);
      store(hn::MulAdd(gy, xhat, load(r.dweight + i, n)), r.dweight + i, n);
      if (r.centred) store(hn::Add(gy, load(r.dbias + i, n)), r.dbias + i, n);
    });
    const float width = static_cast<float>(r.width);
    const V mean_g = hn::Set(d, r.centred ? sum_of_lanes(sum_g) / width : 0.0f);
    const V mean_gx = hn::Set(d, sum_of_lanes(sum_gx) / width);
    for_vectors(r.width, [&](std::int64_t i, std::size_t n) HWY_ATTR {
      const V xhat = hn::Mul(hn::Sub(load(x + i, n), mean), rstd);
      const V g = hn::Mul(load(dy + i, n), load(r.weight + i, n));
      V out = hn::Mul(rstd, hn::Sub(hn::Sub(g, mean_g), hn::Mul(xhat, mean_gx)));
      if (r.accumulate) out = hn::Add(load(dx + i, n), out);
      store(out, dx + i, n);
    });
  }
}

NormTable norm_table() {
  return {{&norm_forward<float>, &norm_backward<float>}, {&norm_forward<bf16>, &norm_backward<bf16>}};
}

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(norm_table);
constexpr std::int64_t kSumTokens = 64;

template <class T>
const NormKernels<T>& kernels() {
  static const NormTable table = HWY_DYNAMIC_DISPATCH(norm_table)();
  return std::get<NormKernels<T>>(table);
}

template <class T>
void forward(NormRows<T> rows, std::int64_t tokens) {
  parallel_blocks(tokens, rows_in_block(rows.width, 1 << 15), [&](std::int64_t begin, std::int64_t end) {
    NormRows<T> mine = rows;
    mine.begin = begin;
    mine.end = end;
    kernels<T>().forward(mine);
  });
}

template <class T>
void backward(NormRows<T> rows, std::int64_t tokens, std::byte* scratch) {
  const std::int64_t blocks = (tokens + kSumTokens - 1) / kSumTokens, width = rows.width;
  auto* parts = reinterpret_cast<float*>(scratch);
  const std::int64_t stride = rows.centred ? 2 * width : width;
  parallel_blocks(tokens, kSumTokens, [&](std::int64_t begin, std::int64_t end) {
    NormRows<T> mine = rows;
    mine.begin = begin;
    mine.end = end;
    mine.dweight = parts + begin / kSumTokens * stride;
    std::fill(mine.dweight, mine.dweight + stride, 0.0f);
    if (rows.centred) mine.dbias = mine.dweight + width;
    kernels<T>().backward(mine);
  });
  parallel_blocks(width, 1024, [&](std::int64_t begin, std::int64_t end) {
    sum_parts(parts, stride, blocks, begin, end, rows.dweight);
    if (rows.centred) sum_parts(parts + width, stride, blocks, begin, end, rows.dbias);
  });
}

}  // namespace

template <class T>
void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps) {
  forward(NormRows<T>{.width = width, .eps = eps, .x = x, .weight = weight, .y = y}, tokens);
}

template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,
                float eps) {
  forward(NormRows<T>{.centred = true, .width = width, .eps = eps, .x = x, .weight = weight, .bias = bias, .y = y},
          tokens);
}

template <class T>
void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                       std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch) {
  NormRows<T> rows{.width = width, .eps = eps, .x = x, .weight = weight, .dy = dy, .dx = dx};
  rows.accumulate = accumulate;
  rows.dweight = dweight;
  backward(rows, tokens, scratch);
}

template <class T>
void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                         float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch) {
  NormRows<T> rows{.centred = true, .width = width, .eps = eps, .x = x, .weight = weight, .dy = dy, .dx = dx};
  rows.accumulate = accumulate;
  rows.dweight = dweight;
  rows.dbias = dbias;
  backward(rows, tokens, scratch);
}

std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width) {
  return static_cast<std::uint64_t>((tokens + kSumTokens - 1) / kSumTokens * width) * 2 * sizeof(float);
}

template void rms_norm(const float*, const float*, float*, std::int64_t, std::int64_t, float);
template void rms_norm(const bf16*, const float*, bf16*, std::int64_t, std::int64_t, float);
template void rms_norm_backward(const float*, const float*, const float*, float*, bool, float*, std::int64_t,
                                std::int64_t, float, std::byte*);
template void rms_norm_backward(const bf16*, const float*, const bf16*, bf16*, bool, float*, std::int64_t, std::int64_t,
                                float, std::byte*);
template void layer_norm(const float*, const float*, const float*, float*, std::int64_t, std::int64_t, float);
template void layer_norm(const bf16*, const float*, const float*, bf16*, std::int64_t, std::int64_t, float);
template void layer_norm_backward(const float*, const float*, const float*, float*, bool, float*, float*, std::int64_t,
                                  std::int64_t, float, std::byte*);
template void layer_norm_backward(const bf16*, const float*, const bf16*, bf16*, bool, float*, float*, std::int64_t,
                                  std::int64_t, float, std::byte*);

}  // namespace transload::kernels
#endif
