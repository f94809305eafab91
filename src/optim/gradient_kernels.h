// What backward's sums become: added in fp32, rounded once when final. Elementwise, so cuts do not change a bit.
#pragma once

#include <cstdint>

#include "base/block_view.h"

namespace transload {

/// fp32 block: elements [at, at + n) = or += values.
void store_or_add(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values, bool add);
/// bf16 block: elements [at, at + n) = round(values), nearest even.
void round_values(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values);
/// bf16 block: elements [at, at + n) = round(sums[at…] + values); sums is fp32.
void round_sum(const BlockView& sums, const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values);

}  // namespace transload
