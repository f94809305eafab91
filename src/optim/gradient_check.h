// Whether gradients are finite, before anything is applied.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload {

/// No element of n is infinite or NaN. In parallel over oneTBB's current arena.
bool all_finite(Dtype type, const void* data, std::uint64_t n);

}  // namespace transload
