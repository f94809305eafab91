#include "kernels/cuda/squares.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

template <class T>
void start(const T* g, std::int64_t n, double* sums, std::uint32_t* not_finite, cudaStream_t stream) {
  const auto kernel = aligned(g) ? square_runs<true, T> : square_runs<false, T>;
  launch("sum_squares", kernel, blocks_for(n, kRunsOfBlock * kRun), kSquareThreads, 0, stream, g, n, sums, not_finite);
}

}  // namespace

void sum_squares(const bf16* g, std::int64_t n, double* sums, std::uint32_t* not_finite, cudaStream_t stream) {
  start(g, n, sums, not_finite, stream);
}
void sum_squares(const float* g, std::int64_t n, double* sums, std::uint32_t* not_finite, cudaStream_t stream) {
  start(g, n, sums, not_finite, stream);
}

}  // namespace transload::kernels::cuda
