// What has content at once: from a block's `write` to its `consume`, in the steady state where one traced step follows
// another. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/trace_types.h"

namespace transload {

struct Live {
  std::uint64_t blocks = 0, bytes = 0;  ///< the most of each; not always at the same tick
};
/// Of the blocks for which `counts` says so; `frame_bytes`: sizes are rounded up to it.
Live most_live(const Trace& trace, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes,
               const std::function<bool(const BlockSpec&)>& counts);

}  // namespace transload
