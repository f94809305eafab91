// What backward's sums become: added in fp32, rounded once when final, and their squares summed for the norm; on the
// processor that computes. Elementwise, or summed exactly, so cuts and order do not change a bit: every form of this
// interface gives the same bits.
// Threading: called by tasks of the compute stream, except take_squares().
#pragma once

#include <cstdint>
#include <memory>

#include "base/block_view.h"
#include "base/dtype.h"
#include "kernels/cpu/exact_sum.h"

namespace transload {

class GradientKernels {
 public:
  virtual ~GradientKernels() = default;
  virtual void zero(const BlockView& block) = 0;
  /// fp32 block: elements [at, at + n) = or += values.
  virtual void store_or_add(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values,
                            bool add) = 0;
  /// bf16 block: elements [at, at + n) = round(values), nearest even.
  virtual void round_values(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values) = 0;
  /// bf16 block: elements [at, at + n) = round(sums[at…] + values); sums is fp32.
  virtual void round_sum(const BlockView& sums, const BlockView& block, std::uint64_t at, std::uint64_t n,
                         const float* values) = 0;
  /// Adds the squares of elements [at, at + n) of a block of `dtype` to the sum; `at` is the start of a run of 128.
  virtual void add_squares(const BlockView& block, Dtype dtype, std::uint64_t at, std::uint64_t n) = 0;
  /// The sum since the last call. From the issuing thread, after the stream was synchronized.
  virtual kernels::ExactSum take_squares() = 0;
};

std::unique_ptr<GradientKernels> make_cpu_gradient_kernels();

}  // namespace transload
