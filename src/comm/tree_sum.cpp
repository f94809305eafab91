// Compiled with -O3: the loops over a block's elements are what the compiler vectorises.
#include "comm/tree_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace transload {
namespace {

constexpr std::uint64_t kBlock = 512;  // elements summed at a time: every level of the tree stays in the first cache
constexpr std::size_t kLevels = 32;

void read(const float* from, float* to, std::uint64_t n) { std::memcpy(to, from, n * sizeof(float)); }
void read(const bf16* from, float* to, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
}

// As round_to_bf16 (base/dtype.h), without a branch.
void write(const float* from, bf16* to, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto u = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    to[i].bits = static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
  }
}
void write(const float* from, float* to, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto u = std::bit_cast<std::uint32_t>(from[i]);
    to[i] = std::bit_cast<float>((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : u);
  }
}

void add(float* sum, const float* other, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) sum[i] += other[i];
}

// A binary counter: after rank r, level l of the stack is the sum of a whole subtree for each set bit of r + 1; what is
// left at the end is joined from the right.
template <class T>
void sum_block(std::span<const std::byte* const> pieces, std::uint64_t begin, std::uint64_t n, T* out) {
  float stack[kLevels][kBlock];
  std::size_t depth = 0;
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    read(reinterpret_cast<const T*>(pieces[r]) + begin, stack[depth++], n);
    for (std::size_t bits = r + 1; bits % 2 == 0; bits /= 2, --depth) add(stack[depth - 2], stack[depth - 1], n);
  }
  for (; depth > 1; --depth) add(stack[depth - 2], stack[depth - 1], n);
  write(stack[0], out + begin, n);
}

template <class T>
void sum_all(std::span<const std::byte* const> pieces, std::byte* out, std::uint64_t elements) {
  for (std::uint64_t begin = 0; begin < elements; begin += kBlock)
    sum_block(pieces, begin, std::min(kBlock, elements - begin), reinterpret_cast<T*>(out));
}

}  // namespace

void tree_sum(std::span<const std::byte* const> pieces, std::byte* out, std::uint64_t elements, Dtype type) {
  TRANSLOAD_CHECK(type == Dtype::f32 || type == Dtype::bf16, "sums of {} are not made", name_of(type));
  if (type == Dtype::f32)
    sum_all<float>(pieces, out, elements);
  else
    sum_all<bf16>(pieces, out, elements);
}

}  // namespace transload
