// Writes new slot files through once, with zeros: blocks that were written before are overwritten at twice the speed
// of those that were only allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "offload/io_queue.h"

namespace transload {

struct FillRange {
  const os::File* file = nullptr;
  std::uint64_t offset = 0, bytes = 0;
};
/// progress(done_bytes, total_bytes) about four times a second, and at the end. Throws the first error, with nothing
/// in flight.
void fill_with_zeros(IoQueue* queue, const std::vector<FillRange>& ranges,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace transload
