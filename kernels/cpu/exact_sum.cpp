#include "kernels/cpu/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace transload::kernels {
namespace {
constexpr std::uint64_t kLow32 = 0xFFFFFFFFu;
constexpr int kLeastExponent = -1074;  // of the lowest bit of the lowest limb
}  // namespace

ExactSum::ExactSum(const std::array<std::uint64_t, kLimbs>& limbs, bool poisoned) : poisoned_(poisoned) {
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < limbs.size(); ++i) {
    const std::uint64_t low = (limbs[i] & kLow32) + (carry & kLow32);
    limbs_[i] = static_cast<std::int64_t>(low & kLow32);
    carry = (limbs[i] >> 32) + (carry >> 32) + (low >> 32);
  }
}

void ExactSum::add(double v) {
  const auto bits = std::bit_cast<std::uint64_t>(v);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7FF);
  if (exponent == 0x7FF) {
    poisoned_ = true;
    return;
  }
  TRANSLOAD_CHECK(v >= 0, "v = {}", v);
  if (adds_ == kMostAdds) normalize();
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent != 0) mantissa |= std::uint64_t{1} << 52;
  const int position = std::max(exponent, 1) - 1;  // of the mantissa's lowest bit, above 2^-1074
  const int offset = position % 32;
  const std::uint64_t low = mantissa << offset;
  const std::uint64_t high = offset == 0 ? 0 : mantissa >> (64 - offset);
  std::int64_t* limb = &limbs_[static_cast<std::size_t>(position / 32)];
  limb[0] += static_cast<std::int64_t>(low & kLow32);
  limb[1] += static_cast<std::int64_t>(low >> 32);
  limb[2] += static_cast<std::int64_t>(high);
  ++adds_;
}

void ExactSum::merge(const ExactSum& other) {
  poisoned_ = poisoned_ || other.poisoned_;
  ExactSum addend = other;
  addend.normalize();
  if (adds_ == kMostAdds) normalize();
  for (std::size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += addend.limbs_[i];
  ++adds_;
}

/// Propagates carries: every limb but the last below 2^32.
void ExactSum::normalize() {
  std::int64_t carry = 0;
  for (std::size_t i = 0; i + 1 < limbs_.size(); ++i) {
    const std::int64_t sum = limbs_[i] + carry;
    carry = sum >> 32;
    limbs_[i] = sum & static_cast<std::int64_t>(kLow32);
  }
  limbs_.back() += carry;
  adds_ = 0;
}

double ExactSum::value() const {
  if (poisoned_) return std::numeric_limits<double>::quiet_NaN();
  ExactSum n = *this;
  n.normalize();
  int top = kLimbs - 1;
  while (top > 0 && n.limbs_[static_cast<std::size_t>(top)] == 0) --top;
  const auto limb = [&](int i) {
    return i < 0 ? 0 : static_cast<std::uint64_t>(n.limbs_[static_cast<std::size_t>(i)]);
  };
  if (limb(top) == 0) return 0;

  // The 64 bits below and with the highest one, and whether anything lies below them.
  const int shift = 32 - std::bit_width(limb(top));
  const std::uint64_t below = limb(top - 2) << shift;
  std::uint64_t word = (((limb(top) << 32) | limb(top - 1)) << shift) | (below >> 32);
  bool sticky = (below & kLow32) != 0;
  for (int i = top - 3; i >= 0 && !sticky; --i) sticky = limb(i) != 0;

  // Eleven of them go. Sums below 2^-1021 have only zeros there, so that denormal ones come out exact.
  const std::uint64_t rest = word & 0x7FF, half = 0x400;
  word >>= 11;
  if (rest > half || (rest == half && (sticky || (word & 1) != 0))) ++word;
  const int exponent = kLeastExponent + top * 32 - shift - 32 + 11;  // of the word's lowest bit
  return std::ldexp(static_cast<double>(word), exponent);
}

}  // namespace transload::kernels
