#include "kernels/cuda/products.h"
#include "kernels/cuda/reduce.cuh"

namespace transload::kernels::cuda {
namespace {

/// One block a row.
template <bool kAligned, class T>
__global__ __launch_bounds__(kRowThreads) void strided_rows(const float* acc, const float* bias, T* c, std::int64_t ld,
                                                            std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  for_groups(width, [&](std::int64_t i, int count) {
    float v[kGroup], term[kGroup] = {};
    load_part<kAligned>(acc + row * width + i, count, v);
    if (bias != nullptr) {
      load_part<kAligned>(bias + i, count, term);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) v[j] = v[j] + term[j];
    }
    store_part<kAligned>(v, count, c + row * ld + i);
  });
}

}  // namespace

template <class T>
void round_strided(const float* acc, const float* bias, T* c, std::int64_t ld, std::int64_t tokens, std::int64_t width,
                   cudaStream_t stream) {
  const bool wide = width % kGroup == 0 && ld % kGroup == 0 && aligned(acc, bias, c);
  const auto kernel = wide ? strided_rows<true, T> : strided_rows<false, T>;
  launch("round_strided", kernel, blocks_for(tokens, 1), row_threads(width), 0, stream, acc, bias, c, ld, width);
}

template void round_strided(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t);
template void round_strided(const float*, const float*, bf16*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t);

}  // namespace transload::kernels::cuda
