#include "train/norm.h"

#include "kernels/cpu/layers.h"

namespace transload {

template <class T>
void norm_forward(StepContext& ctx, const Norm& norm, const T* x, T* y, std::int64_t tokens,
                  const PanelBuffers<T>& buffers) {
  const auto width = static_cast<std::int64_t>(ctx.layout.param(norm.weight).elements());
  float* weight = buffers.vectors[0];
  load_vector<T>(ctx, norm.weight, weight);
  if (!norm.bias.valid()) {
    ctx.stream.launch([&k = ctx.kernels, x, weight, y, tokens, width, eps = norm.eps] {
      k.rms_norm(x, weight, y, tokens, width, eps);
    });
    return;
  }
  float* bias = buffers.vectors[1];
  load_vector<T>(ctx, norm.bias, bias);
  ctx.stream.launch([&k = ctx.kernels, x, weight, bias, y, tokens, width, eps = norm.eps] {
    k.layer_norm(x, weight, bias, y, tokens, width, eps);
  });
}

template <class T>
void norm_backward(StepContext& ctx, const Norm& norm, const T* x, const T* dy, T* dx, bool accumulate,
                   std::int64_t tokens, const PanelBuffers<T>& buffers) {
  const std::uint64_t elements = ctx.layout.param(norm.weight).elements();
  const auto width = static_cast<std::int64_t>(elements);
  float* weight = buffers.vectors[0];
  float* dweight = buffers.vector_gradients[0];
  float* dbias = buffers.vector_gradients[1];
  load_vector<T>(ctx, norm.weight, weight);
  ctx.stream.launch([&k = ctx.kernels, x, weight, dy, dx, accumulate, dweight, dbias, tokens, width, eps = norm.eps,
                     rms = !norm.bias.valid(), scratch = buffers.scratch] {
    if (rms)
      k.rms_norm_backward(x, weight, dy, dx, accumulate, dweight, tokens, width, eps, scratch);
    else
      k.layer_norm_backward(x, weight, dy, dx, accumulate, dweight, dbias, tokens, width, eps, scratch);
  });
  ctx.contribute(norm.weight, 0, elements, dweight);
  if (norm.bias.valid()) ctx.contribute(norm.bias, 0, elements, dbias);
}

#define TRANSLOAD_NORM(T)                                                                                    \
  template void norm_forward(StepContext&, const Norm&, const T*, T*, std::int64_t, const PanelBuffers<T>&); \
  template void norm_backward(StepContext&, const Norm&, const T*, const T*, T*, bool, std::int64_t,         \
                              const PanelBuffers<T>&);
TRANSLOAD_NORM(float)
TRANSLOAD_NORM(bf16)
#undef TRANSLOAD_NORM

}  // namespace transload
