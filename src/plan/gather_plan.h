// Gathers ahead of use: the order of uses is known, so a chunk is gathered before the computation that needs it begins
// on the one before, and what stays is what is used again soonest. Pure functions: all ranks plan the same.
#pragma once

#include <cstddef>
#include <span>

#include "base/trace_types.h"

namespace transload {

/// At most `room` (≥ 1) chunks are gathered at once. With room for one, nothing is gathered ahead.
GatherPlan plan_gathers(std::span<const ChunkId> uses, std::size_t room);

}  // namespace transload
