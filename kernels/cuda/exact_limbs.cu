#include "kernels/cuda/exact_limbs.h"

#include "kernels/cpu/exact_sum.h"
#include "kernels/cuda/launch.h"

namespace transload::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumsOfBlock = 16 * kThreads;  // the block's own limbs take most of the traffic

__device__ inline unsigned long long bits_of(double v) {
  unsigned long long bits = 0;
  static_assert(sizeof bits == sizeof v);
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

/// ExactSum::add.
__device__ inline void add_one(double v, unsigned long long* limbs) {
  constexpr unsigned long long kOne = 1;
  const unsigned long long bits = bits_of(v);
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
  if (exponent == 0x7FF || v == 0) return;
  const unsigned long long mantissa = (bits & ((kOne << 52) - 1)) | (exponent != 0 ? kOne << 52 : 0);
  const int position = (exponent > 1 ? exponent : 1) - 1, offset = position % 32;
  const unsigned long long low = mantissa << offset, high = offset == 0 ? 0 : mantissa >> (64 - offset);
  unsigned long long* const at = limbs + position / 32;
  atomicAdd(at, low & 0xFFFFFFFFu);
  atomicAdd(at + 1, low >> 32);
  if (high != 0) atomicAdd(at + 2, high);
}

__global__ __launch_bounds__(kThreads) void limbs_of_block(const double* sums, std::int64_t n,
                                                           unsigned long long* limbs) {
  constexpr int kLimbs = ExactSum::kLimbs;
  TRANSLOAD_SHARED(unsigned long long, own, kLimbs);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kLimbs) own[thread] = 0;
  __syncthreads();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSumsOfBlock;
  const std::int64_t end = n - first < kSumsOfBlock ? n : first + kSumsOfBlock;
  for (std::int64_t i = first + thread; i < end; i += kThreads) add_one(sums[i], own);
  __syncthreads();
  if (thread < kLimbs && own[thread] != 0) atomicAdd(limbs + thread, own[thread]);
}

__global__ void add_doubles(const double* term, double* total) { *total = *total + *term; }

}  // namespace

void add_to_limbs(const double* sums, std::int64_t n, unsigned long long* limbs, cudaStream_t stream) {
  launch("add_to_limbs", limbs_of_block, blocks_for(n, kSumsOfBlock), kThreads, 0, stream, sums, n, limbs);
}

void add_in_order(const double* term, double* total, cudaStream_t stream) {
  launch("add_in_order", add_doubles, 1, 1, 0, stream, term, total);
}

}  // namespace transload::kernels::cuda
