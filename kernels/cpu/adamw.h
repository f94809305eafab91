// Fused AdamW over contiguous runs of a chunk, one pass over memory. A fixed sequence of IEEE-754 single operations
// (explicit fma, native or std::fma, no contraction, no reassociation): the same bits on every instruction set, as the
// scalar reference, and on CUDA. Formula (Loshchilov & Hutter, decoupled decay; PyTorch's order), all in fp32:
//   g  = gradient · gradient_scale
//   m  = fma(one_minus_beta1, g − m, m)          v = fma(one_minus_beta2, g·g, beta2·v)
//   p  = master · decay                          (decay = 1 − lr·weight_decay)
//   p  = fma(−step_size, m / fma(sqrt(v), inverse_sqrt_correction2, epsilon), p)
// with step_size = lr / (1 − beta1^t), inverse_sqrt_correction2 = 1 / √(1 − beta2^t), computed in double, rounded once.
// Every NaN that is stored (weight, moments) is 0x7FC00000: which NaN an operation yields differs between processors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace transload::kernels {

struct AdamwHyper {  ///< as the user gives them
  double lr = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};
struct AdamwCoefficients {
  float one_minus_beta1, beta2, one_minus_beta2, decay, step_size, inverse_sqrt_correction2, epsilon;
};
/// step ≥ 1: the count of this update of the parameter.
AdamwCoefficients coefficients(const AdamwHyper& h, std::uint64_t step);

/// Pointers to one run; null where the layout has no such plane. Exactly one of (weight, residue) or weight_f32; one of
/// gradient or gradient_f32.
struct AdamwRun {
  bf16* weight = nullptr;
  std::int16_t* residue = nullptr;
  float* weight_f32 = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  const bf16* gradient = nullptr;
  const float* gradient_f32 = nullptr;
};
/// n elements, any n, any alignment to the element; single-threaded (the pipeline cuts runs and runs them in TBB).
void adamw(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale);
/// Names of the targets that were compiled and that this processor has, best first ("AVX3", "AVX2", "SSE4", "SCALAR"…).
std::vector<std::string> adamw_targets();
/// The same on a named target: for the tests of law 1. False: not supported here, nothing done.
bool adamw_on_target(const std::string& target, const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c,
                     float gradient_scale);
std::string target_in_use();

}  // namespace transload::kernels
