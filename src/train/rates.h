// What the links of this run can do, measured for a moment at its start: the store's own files through its own path
// (direct or not, checksums included) with the sizes of its own blocks, and memory. Limits in summary.json are computed
// from these. Rates from the counters of the run itself would not do: a link that is not asked for more looks slow.
#pragma once

#include "base/trace_types.h"
#include "offload/device.h"
#include "offload/store.h"
#include "train/accelerator.h"

namespace transload {

/// `store` may be null. Takes at most `room_bytes` of memory, given back before return; needs free slots, which it
/// frees again. `link_rate`: the emulated device's, 0 for memory speed.
Rates measure_rates(Store* store, const std::vector<SlotClass>& slots, std::uint64_t room_bytes, double link_rate);

/// The links of a device, with memory as copies will use it: at most `room_bytes` on each side, given back.
void measure_device(Device& device, std::uint64_t room_bytes, Rates& rates);

/// The same for a probe, and both directions at once: `bytes` of memory for each direction on each side.
AcceleratorLinks measure_both_ways(Device& device, std::uint64_t bytes);

}  // namespace transload
