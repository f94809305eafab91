// The sum over ranks: a fixed binary tree by rank number, in fp32, rounded once.
//
//   T(one rank) = its piece;  T(n ranks) = T(the first p) + T(the others), p the largest power of two below n
//
// so 5 ranks give ((0+1)+(2+3))+4. Pure arithmetic: any thread, owns nothing. Every NaN becomes 0x7FC00000 (0x7FC0), so
// that processors agree on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace transload {

/// out[elements] ← T(pieces), each of `elements`; all of type `type` (f32 or bf16). `out` may be one of the pieces.
void tree_sum(std::span<const std::byte* const> pieces, std::byte* out, std::uint64_t elements, Dtype type);

}  // namespace transload
