// Cross-entropy over panels of the vocabulary: a running log-sum-exp, then gradients panel by panel.
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/cpu/embedding.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/loss.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

#ifndef TRANSLOAD_KERNELS_LOSS_ONCE
#define TRANSLOAD_KERNELS_LOSS_ONCE
namespace transload::kernels {

struct LossTable {
  void (*accumulate)(const float* logits, std::int64_t n, float& max, float& sum);
  std::tuple<void (*)(const float*, std::int64_t, float, float, float*),
             void (*)(const float*, std::int64_t, float, float, bf16*)>
      gradient;
};

}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

HWY_ATTR void accumulate_row(const float* logits, std::int64_t count, float& max, float& sum) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = count / lanes * lanes;
  V top = hn::Set(d, max);
  for (std::int64_t i = 0; i < whole; i += lanes) top = hn::Max(top, load(logits + i));
  float new_max = hn::GetLane(hn::MaxOfLanes(d, top));
  for (std::int64_t i = whole; i < count; ++i) new_max = std::max(new_max, logits[i]);
  const V shift = hn::Set(d, new_max);
  V total = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes)
    total = hn::Add(total, exp_of_bounded(hn::Sub(load(logits + i), shift)));
  if (whole < count) {
    const auto rest = static_cast<std::size_t>(count - whole);
    const V last = exp_of_bounded(hn::Sub(load(logits + whole, rest), shift));
    total = hn::Add(total, hn::IfThenElseZero(hn::FirstN(d, rest), last));
  }
  sum = sum * std::exp(max - new_max) + sum_of_lanes(total);
  max = new_max;
}

template <class T>
HWY_ATTR void gradient_row(const float* logits, std::int64_t count, float max, float factor, T* out) {
  const V shift = hn::Set(D(), max), f = hn::Set(D(), factor);
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    store(hn::Mul(exp_of_bounded(hn::Sub(load(logits + i, n), shift)), f), out + i, n);
  });
}

LossTable loss_table() { return {&accumulate_row, {&gradient_row<float>, &gradient_row<bf16>}}; }

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(loss_table);
constexpr std::int64_t kBlock = 1 << 14;  // elements of one task

const LossTable& table() {
  static const LossTable chosen = HWY_DYNAMIC_DISPATCH(loss_table)();
  return chosen;
}
void put(float v, float* to) { *to = v; }
void put(float v, bf16* to) { *to = round_to_bf16(v); }

}  // namespace

void loss_reset(LossRows rows, std::int64_t tokens) {
  std::fill(rows.max, rows.max + tokens, -std::numeric_limits<float>::infinity());
  std::fill(rows.sum, rows.sum + tokens, 0.0f);
  std::fill(rows.target, rows.target + tokens, 0.0f);
}

void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                const std::int32_t* targets, LossRows rows) {
  parallel_blocks(tokens, rows_in_block(width, kBlock), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (targets[t] < 0) {
        rows.max[t] = rows.target[t] = 0;
        rows.sum[t] = 1;  // a loss of log 1 + 0 − 0
        continue;
      }
      const float* row = logits + t * ld;
      table().accumulate(row, width, rows.max[t], rows.sum[t]);
      if (targets[t] >= first && targets[t] < first + width) rows.target[t] = row[targets[t] - first];
    }
  });
}

double loss_sum(LossRows rows, std::int64_t tokens) {
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum += std::log(static_cast<double>(rows.sum[t])) + (static_cast<double>(rows.max[t]) - rows.target[t]);
  }
  return sum;
}

template <class T>
void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                         std::int64_t width, const std::int32_t* targets, LossRows rows, float scale, T* dlogits) {
  const auto gradient = std::get<void (*)(const float*, std::int64_t, float, float, T*)>(table().gradient);
  parallel_blocks(tokens, rows_in_block(width, kBlock), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* row = logits + t * ld;
      T* out = dlogits + t * width;
      if (targets[t] < 0) {
        std::fill(out, out + width, T{});
        continue;
      }
      gradient(row, width, rows.max[t], scale / rows.sum[t], out);
      const std::int64_t target = targets[t] - first;
      if (target < 0 || target >= width) continue;
      put((std::exp(row[target] - rows.max[t]) / rows.sum[t] - 1.0f) * scale, out + target);
    }
  });
}

template void loss_panel_backward(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                  const std::int32_t*, LossRows, float, float*);
template void loss_panel_backward(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                  const std::int32_t*, LossRows, float, bf16*);

}  // namespace transload::kernels
#endif
