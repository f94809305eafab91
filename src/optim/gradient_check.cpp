#include "optim/gradient_check.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_reduce.h>

#include <algorithm>
#include <functional>

namespace transload {
namespace {

/// The largest exponent field decides: all ones means infinite or NaN.
template <class Word>
bool below(const Word* words, std::uint64_t n, Word exponent) {
  constexpr std::uint64_t kGrain = 1 << 16;
  const Word most = tbb::parallel_reduce(
      tbb::blocked_range<std::uint64_t>(0, n, kGrain), Word{0},
      [&](const tbb::blocked_range<std::uint64_t>& range, Word largest) {
        for (std::uint64_t i = range.begin(); i < range.end(); ++i)
          largest = std::max(largest, static_cast<Word>(words[i] & exponent));
        return largest;
      },
      [](Word a, Word b) { return std::max(a, b); });
  return most < exponent;
}

}  // namespace

bool all_finite(Dtype type, const void* data, std::uint64_t n) {
  if (type == Dtype::f32) return below<std::uint32_t>(static_cast<const std::uint32_t*>(data), n, 0x7F800000u);
  return below<std::uint16_t>(static_cast<const std::uint16_t*>(data), n, type == Dtype::bf16 ? 0x7F80 : 0x7C00);
}

}  // namespace transload
