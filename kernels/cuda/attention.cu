#include "kernels/cuda/attention.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {

template <class T>
void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads, std::int64_t head_dim,
            const float* cos, const float* sin, bool inverse, cudaStream_t stream) {
  const std::int64_t half = head_dim / 2;
  if (half == 0) return;
  const bool wide = half % kGroup == 0 && ld % kGroup == 0 && aligned(x, cos, sin);
  const auto kernel = wide ? rotate_heads<true, T> : rotate_heads<false, T>;
  launch("rotary", kernel, blocks_for(tokens, 1), row_threads(heads * half), 0, stream, x, ld, length,
         static_cast<int>(heads), static_cast<int>(half), cos, sin, inverse ? -1.0f : 1.0f);
}

template <class T>
void causal_softmax(const ScorePanel& panel, const float* scores, T* p, float* lse, cudaStream_t stream) {
  const bool wide = panel.ld % kGroup == 0 && aligned(scores, p);
  const auto kernel = wide ? softmax_rows<true, T> : softmax_rows<false, T>;
  launch("causal_softmax", kernel, blocks_for(panel.heads * panel.queries, 1), row_threads(panel.length), 0, stream,
         panel, scores, p, lse);
}

template <class T>
void causal_softmax_backward(const ScorePanel& panel, const float* scores, const float* dp, const float* lse,
                             const float* delta, T* p, T* ds, cudaStream_t stream) {
  const bool wide = panel.ld % kGroup == 0 && aligned(scores, dp, p, ds);
  const auto kernel = wide ? softmax_rows_backward<true, T> : softmax_rows_backward<false, T>;
  launch("causal_softmax_backward", kernel, blocks_for(panel.heads * panel.queries, 1), row_threads(panel.length), 0,
         stream, panel, scores, dp, lse, delta, p, ds);
}

template <class T>
void attention_delta(const T* out, const T* dout, std::int64_t ld, std::int64_t batch, std::int64_t length,
                     std::int64_t heads, std::int64_t head_dim, float* delta, cudaStream_t stream) {
  const bool wide = ld % kGroup == 0 && head_dim % kGroup == 0 && aligned(out, dout);
  const auto kernel = wide ? head_dots<true, T> : head_dots<false, T>;
  const std::int64_t count = batch * length * heads;
  launch("attention_delta", kernel, blocks_for(count, kRowWarps), kRowThreads, 0, stream, out, dout, ld, length, heads,
         head_dim, count, delta);
}

template void rotary(float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                     const float*, bool, cudaStream_t);
template void rotary(bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                     const float*, bool, cudaStream_t);
template void causal_softmax(const ScorePanel&, const float*, float*, float*, cudaStream_t);
template void causal_softmax(const ScorePanel&, const float*, bf16*, float*, cudaStream_t);
template void causal_softmax_backward(const ScorePanel&, const float*, const float*, const float*, const float*, float*,
                                      float*, cudaStream_t);
template void causal_softmax_backward(const ScorePanel&, const float*, const float*, const float*, const float*, bf16*,
                                      bf16*, cudaStream_t);
template void attention_delta(const float*, const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                              std::int64_t, float*, cudaStream_t);
template void attention_delta(const bf16*, const bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                              std::int64_t, float*, cudaStream_t);

}  // namespace transload::kernels::cuda
