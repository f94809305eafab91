// The sum over ranks: the bits of the tree as its definition reads, with groups and without.
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

template <class T>
float tree(const T* pieces, std::int64_t stride, int first, int count, std::int64_t at) {
  if (count == 1) return to_float(pieces[first * stride + at]);
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return tree(pieces, stride, first, half, at) + tree(pieces, stride, first + half, count - half, at);
}

void round_to(float sum, float* to) { *to = std::isnan(sum) ? std::bit_cast<float>(0x7FC00000u) : sum; }
void round_to(float sum, bf16* to) { *to = round_to_bf16(sum); }

}  // namespace

TEMPLATE_TEST_CASE("sums over ranks have the bits of the tree", "", float, bf16) {
  for (const int count : {1, 2, 3, 5, 6, 7, 8, 13})
    for (const std::int64_t n : {1, 7, 8, 64, 1000})
      for (const std::int64_t shift : {0, 1}) {
        INFO(count << " ranks, " << n << " elements, " << shift << " behind a boundary");
        const std::int64_t stride = (n + 15) / 8 * 8 + shift;
        Array<TestType> pieces(stride * count, shift), got(n, shift), want(n, shift);
        pieces.wild(static_cast<std::uint64_t>(count));
        cuda::tree_sum(pieces.data(), stride, count, got.data(), n, nullptr);
        for (std::int64_t i = 0; i < n; ++i) round_to(tree(pieces.data(), stride, 0, count, i), want.data() + i);
        require_same("sum", got, want, false);
      }
}
