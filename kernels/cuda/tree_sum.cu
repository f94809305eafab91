#include "kernels/cuda/tree_sum.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {

template <class T>
void tree_sum(const T* pieces, std::int64_t stride, int count, T* out, std::int64_t n, cudaStream_t stream) {
  const Span span = span_of(n, {operand(pieces), operand(pieces + stride), operand(out)});
  launch_elementwise("tree_sum", TreeSum<T>{pieces, stride, count, out}, span, stream);
}

template void tree_sum(const float*, std::int64_t, int, float*, std::int64_t, cudaStream_t);
template void tree_sum(const bf16*, std::int64_t, int, bf16*, std::int64_t, cudaStream_t);

}  // namespace transload::kernels::cuda
