// y = x · Wᵀ + b and its gradients over weight panels, for the two ways in which weights are written:
//   Linear [out, in] (Llama, Qwen2): a panel gives columns of y; the gradient of x is summed over panels in fp32.
//   Conv1D [in, out] (GPT-2): y is summed over panels in fp32; a panel gives columns of the gradient of x.
// All buffers lie in workspace, row-major [tokens, features]; `ld` is the distance of two rows in elements.
#pragma once

#include <cstdint>

#include "train/weight_panels.h"

namespace transload {

/// A weight and its bias (invalid: none).
struct Affine {
  ParamId weight, bias;
};

template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t ld = 0;
};

/// y = x · Wᵀ + b. Uses vectors[1].
template <class T>
void linear_forward(StepContext& ctx, const Affine& a, Rows<const T> x, Rows<T> y, std::int64_t tokens,
                    const PanelBuffers<T>& buffers);
/// dx[tokens, in] = (or +=) dy · W; hands over dW = dyᵀ · x and db. Gradients go first: they leave early, and (Conv1D)
/// dx may be x then.
template <class T>
void linear_backward(StepContext& ctx, const Affine& a, Rows<const T> x, Rows<const T> dy, float* dx, bool accumulate,
                     std::int64_t tokens, const PanelBuffers<T>& buffers);

/// y = x · W + b (+ residual, where not null); y and residual contiguous; sums: [tokens, out]. Uses vectors[1].
template <class T>
void conv1d_forward(StepContext& ctx, const Affine& a, Rows<const T> x, const T* residual, float* sums, T* y,
                    std::int64_t tokens, const PanelBuffers<T>& buffers);
/// dx = dy · Wᵀ, dy contiguous; hands over dW = xᵀ · dy and db. dx may be x.
template <class T>
void conv1d_backward(StepContext& ctx, const Affine& a, Rows<const T> x, const T* dy, Rows<T> dx, std::int64_t tokens,
                     const PanelBuffers<T>& buffers);

}  // namespace transload
