// The exact sum of kernels/cpu/exact_sum.h on the device: doubles are added to 64-bit limbs by integer atomics, which
// commute, so that the bits do not depend on the order of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace transload::kernels::cuda {

/// limbs[ExactSum::kLimbs] += sums[0, n), all ≥ 0; what is not finite is left out. Up to 2^32 sums keep every limb from
/// overflow.
void add_to_limbs(const double* sums, std::int64_t n, unsigned long long* limbs, cudaStream_t stream);

/// *total = *total + *term, for sums whose terms come one after another.
void add_in_order(const double* term, double* total, cudaStream_t stream);

}  // namespace transload::kernels::cuda
