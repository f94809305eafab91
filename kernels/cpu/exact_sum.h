// The gradient norm's sums (law 1). Squares are summed in fp64 per run of 128 elements from the parameter's start, in
// a fixed order (eight lanes, lane i takes elements i, i+8, …; then ((0+4)+(2+6))+((1+5)+(3+7))); run sums are combined
// exactly, by a superaccumulator, so that the order of runs, threads, chunks and ranks does not matter.
#pragma once

#include <array>
#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

/// An exact sum of non-negative finite doubles, as carry-save limbs: add and merge commute. value() rounds once to
/// nearest even (infinity beyond the largest double). A non-finite addend sets poisoned(), and value() is then NaN.
class ExactSum {
 public:
  static constexpr int kLimbs = 70;  ///< 32 bits of weight each, 2^-1074 … 2^1024 and headroom

  ExactSum() = default;
  /// A sum that was formed elsewhere: limb i counts 2^(32·i − 1074), and may have carried over.
  ExactSum(const std::array<std::uint64_t, kLimbs>& limbs, bool poisoned);
  void add(double v);
  void merge(const ExactSum& other);
  double value() const;
  bool poisoned() const { return poisoned_; }

 private:
  void normalize();
  static constexpr std::uint32_t kMostAdds = 1u << 30;
  std::array<std::int64_t, kLimbs> limbs_{};  ///< each at most (adds_ + 1) · (2^32 − 1): far from overflow
  std::uint32_t adds_ = 0;                    ///< since the carries were last propagated; at most kMostAdds
  bool poisoned_ = false;
};

/// Adds the sums of squares of n elements (first element: the start of a run; a last run may be short). Returns false
/// when any element is not finite (then the sum is poisoned).
bool add_squares(const bf16* g, std::int64_t n, ExactSum& sum);
bool add_squares(const float* g, std::int64_t n, ExactSum& sum);

}  // namespace transload::kernels
