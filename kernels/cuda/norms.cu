#include "kernels/cuda/norms.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

template <class T>
bool on_boundaries(const NormArrays<T>& a) {
  return a.width % kGroup == 0 && aligned(a.x, a.y, a.dy, a.dx, a.weight, a.bias);
}

template <bool kCentred, class T>
void forward(const NormArrays<T>& a, std::int64_t tokens, cudaStream_t stream) {
  const auto kernel = on_boundaries(a) ? norm_rows<kCentred, true, T> : norm_rows<kCentred, false, T>;
  launch(kCentred ? "layer_norm" : "rms_norm", kernel, blocks_for(tokens, 1), row_threads(a.width), 0, stream, a);
}

/// scratch: the parts of dweight (and dbias), then the moments of each token.
template <bool kCentred, class T>
void backward(NormArrays<T> a, float* dweight, float* dbias, std::int64_t tokens, std::byte* scratch,
              cudaStream_t stream) {
  const char* const name = kCentred ? "layer_norm_backward" : "rms_norm_backward";
  const std::int64_t blocks = blocks_for(tokens, kSumTokens), stride = a.width * (kCentred ? 2 : 1);
  auto* const parts = reinterpret_cast<float*>(scratch);
  a.moments = reinterpret_cast<Moments*>(parts + blocks * stride);
  const bool wide = on_boundaries(a);
  const auto kernel = wide ? norm_rows_backward<kCentred, true, T> : norm_rows_backward<kCentred, false, T>;
  launch(name, kernel, blocks_for(tokens, 1), row_threads(a.width), 0, stream, a);
  launch_column_parts(name, NormTerms<kCentred, T>{a}, wide && aligned(parts), tokens, a.width, parts, stream);
  launch_sum_parts(parts, stride, blocks, a.width, dweight, stream);
  if (kCentred) launch_sum_parts(parts + a.width, stride, blocks, a.width, dbias, stream);
}

}  // namespace

std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width) {
  return static_cast<std::uint64_t>(blocks_for(tokens, kSumTokens)) * static_cast<std::uint64_t>(width) * 2 *
             sizeof(float) +
         static_cast<std::uint64_t>(tokens) * sizeof(Moments);
}

template <class T>
void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps,
              cudaStream_t stream) {
  forward<false>(NormArrays<T>{.width = width, .eps = eps, .x = x, .weight = weight, .y = y}, tokens, stream);
}

template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,
                float eps, cudaStream_t stream) {
  forward<true>(NormArrays<T>{.width = width, .eps = eps, .x = x, .weight = weight, .bias = bias, .y = y}, tokens,
                stream);
}

template <class T>
void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                       std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch, cudaStream_t stream) {
  NormArrays<T> a{.width = width, .eps = eps, .x = x, .weight = weight, .dy = dy, .dx = dx};
  a.accumulate = accumulate;
  backward<false>(a, dweight, nullptr, tokens, scratch, stream);
}

template <class T>
void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                         float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch,
                         cudaStream_t stream) {
  NormArrays<T> a{.width = width, .eps = eps, .x = x, .weight = weight, .dy = dy, .dx = dx};
  a.accumulate = accumulate;
  backward<true>(a, dweight, dbias, tokens, scratch, stream);
}

template void rms_norm(const float*, const float*, float*, std::int64_t, std::int64_t, float, cudaStream_t);
template void rms_norm(const bf16*, const float*, bf16*, std::int64_t, std::int64_t, float, cudaStream_t);
template void rms_norm_backward(const float*, const float*, const float*, float*, bool, float*, std::int64_t,
                                std::int64_t, float, std::byte*, cudaStream_t);
template void rms_norm_backward(const bf16*, const float*, const bf16*, bf16*, bool, float*, std::int64_t, std::int64_t,
                                float, std::byte*, cudaStream_t);
template void layer_norm(const float*, const float*, const float*, float*, std::int64_t, std::int64_t, float,
                         cudaStream_t);
template void layer_norm(const bf16*, const float*, const float*, bf16*, std::int64_t, std::int64_t, float,
                         cudaStream_t);
template void layer_norm_backward(const float*, const float*, const float*, float*, bool, float*, float*, std::int64_t,
                                  std::int64_t, float, std::byte*, cudaStream_t);
template void layer_norm_backward(const bf16*, const float*, const bf16*, bf16*, bool, float*, float*, std::int64_t,
                                  std::int64_t, float, std::byte*, cudaStream_t);

}  // namespace transload::kernels::cuda
