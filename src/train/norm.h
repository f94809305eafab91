// Normalisation with its parameters: RMS norm (Llama, Qwen2; no bias) or layer norm (GPT-2).
#pragma once

#include <cstdint>

#include "train/weight_panels.h"

namespace transload {

struct Norm {
  ParamId weight, bias;  ///< bias invalid: RMS norm
  float eps = 0;
};

/// y = norm(x). Uses vectors[0] and [1].
template <class T>
void norm_forward(StepContext& ctx, const Norm& norm, const T* x, T* y, std::int64_t tokens,
                  const PanelBuffers<T>& buffers);
/// dx = (or +=) the gradient of x; hands over those of the parameters.
template <class T>
void norm_backward(StepContext& ctx, const Norm& norm, const T* x, const T* dy, T* dx, bool accumulate,
                   std::int64_t tokens, const PanelBuffers<T>& buffers);

}  // namespace transload
