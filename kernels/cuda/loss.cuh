// Cross-entropy over panels of the vocabulary; one block a token.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"

namespace transload::kernels::cuda {

struct LossReset {
  LossRows rows;
  template <int kCount>
  __device__ void run(std::int64_t t) const {
    rows.max[t] = -infinity();
    rows.sum[t] = 0;
    rows.target[t] = 0;
  }
};

/// max and sum go on over one more panel: sum = sum · e^(max − new max) + Σ e^(logit − new max).
template <bool kAligned>
__global__ __launch_bounds__(kRowThreads) void loss_rows(const float* logits, std::int64_t ld, std::int64_t first,
                                                         std::int64_t width, const std::int32_t* targets,
                                                         LossRows rows) {
  TRANSLOAD_SHARED(float, maxima, kRowWarps);
  TRANSLOAD_SHARED(float, sums, kRowWarps);
  const std::int64_t token = blockIdx.x;
  if (targets[token] < 0) {  // the block's threads agree
    if (threadIdx.x == 0) {
      rows.max[token] = rows.target[token] = 0;
      rows.sum[token] = 1;  // a loss of log 1 + 0 - 0
    }
    return;
  }
  const float* const row = logits + token * ld;
  const float old_max = rows.max[token];
  float max = old_max, sum = 0;
  for_groups(width, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(row + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) max = j < count ? fmaxf(max, v[j]) : max;
  });
  max = block_max(max, maxima);
  for_groups(width, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(row + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) sum = j < count ? __fadd_rn(sum, exp_of_bounded(__fsub_rn(v[j], max))) : sum;
  });
  sum = block_sum(sum, sums);
  if (threadIdx.x != 0) return;
  rows.sum[token] = __fadd_rn(__fmul_rn(rows.sum[token], exp_of_bounded(__fsub_rn(old_max, max))), sum);
  rows.max[token] = max;
  const std::int64_t target = targets[token] - first;
  if (target >= 0 && target < width) rows.target[token] = row[target];
}

template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void loss_rows_backward(const float* logits, std::int64_t ld,
                                                                  std::int64_t first, std::int64_t width,
                                                                  const std::int32_t* targets, LossRows rows,
                                                                  float scale, T* dlogits) {
  const std::int64_t token = blockIdx.x;
  const float max = rows.max[token], sum = rows.sum[token], factor = __fdiv_rn(scale, sum);
  const bool counted = targets[token] >= 0;
  const std::int64_t target = targets[token] - first;
  for_groups(width, [&](std::int64_t i, int count) {
    float v[kGroup];
    load_part<kAligned>(logits + token * ld + i, count, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float e = exp_of_bounded(__fsub_rn(v[j], max));
      const float g = i + j == target ? __fmul_rn(__fsub_rn(__fdiv_rn(e, sum), 1.0f), scale) : __fmul_rn(e, factor);
      v[j] = counted ? g : 0.0f;
    }
    store_part<kAligned>(v, count, dlogits + token * width + i);
  });
}

inline constexpr int kLossThreads = 256;

/// One block: thread i adds tokens i, i + kThreads, … in ascending order, then a tree.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void add_losses(LossRows rows, std::int64_t tokens, double* sum) {
  TRANSLOAD_SHARED(double, partial, kThreads / 32);
  double mine = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += kThreads) {
    mine = mine + (log(static_cast<double>(rows.sum[t])) + (static_cast<double>(rows.max[t]) - rows.target[t]));
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) mine = mine + __shfl_xor_sync(0xFFFFFFFFu, mine, distance);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) mine = mine + partial[w];
  *sum = mine;
}

}  // namespace transload::kernels::cuda
