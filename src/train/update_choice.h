// How many chunks are updated in device memory. A search, since the price of a count is a plan.
#pragma once

#include <cstdint>
#include <functional>

namespace transload {

/// Of more chunks than this, the count is a multiple of most / kFinestUpdates.
inline constexpr std::uint64_t kFinestUpdates = 142;

/// The count in [0, most] that costs least; of equal ones the largest. `cost` (UINT64_MAX: does not fit) falls up to
/// some count and rises from there; it is asked for 0, `most` and eleven counts between at the most. Pure where `cost`
/// is.
std::uint64_t choose_device_updates(std::uint64_t most, const std::function<std::uint64_t(std::uint64_t)>& cost);

}  // namespace transload
