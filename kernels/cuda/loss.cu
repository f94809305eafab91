#include "kernels/cuda/loss.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {

void loss_reset(LossRows rows, std::int64_t tokens, cudaStream_t stream) {
  launch_elementwise("loss_reset", LossReset{rows}, Span{tokens, tokens, 0}, stream);
}

void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                const std::int32_t* targets, LossRows rows, cudaStream_t stream) {
  if (width == 0) return;
  const auto kernel = ld % kGroup == 0 && aligned(logits) ? loss_rows<true> : loss_rows<false>;
  launch("loss_panel", kernel, blocks_for(tokens, 1), row_threads(width), 0, stream, logits, ld, first, width, targets,
         rows);
}

void loss_sum(LossRows rows, std::int64_t tokens, double* sum, cudaStream_t stream) {
  launch("loss_sum", add_losses<kLossThreads>, 1, kLossThreads, 0, stream, rows, tokens, sum);
}

template <class T>
void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                         std::int64_t width, const std::int32_t* targets, LossRows rows, float scale, T* dlogits,
                         cudaStream_t stream) {
  const bool wide = ld % kGroup == 0 && width % kGroup == 0 && aligned(logits, dlogits);
  const auto kernel = wide ? loss_rows_backward<true, T> : loss_rows_backward<false, T>;
  launch("loss_panel_backward", kernel, blocks_for(tokens, 1), row_threads(width), 0, stream, logits, ld, first, width,
         targets, rows, scale, dlogits);
}

template void loss_panel_backward(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                  const std::int32_t*, LossRows, float, float*, cudaStream_t);
template void loss_panel_backward(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                  const std::int32_t*, LossRows, float, bf16*, cudaStream_t);

}  // namespace transload::kernels::cuda
