#include <algorithm>

#include "base/size.h"
#include "plan/planner.h"

namespace transload {

namespace {

/// Frames pinned and in workspace, tick by tick, for one tier.
class PinnedFrames {
 public:
  PinnedFrames(const Trace& trace, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes, Tier tier)
      : trace_(trace), blocks_(blocks), frame_bytes_(frame_bytes), tier_(tier) {}

  /// The most at once; `at` is where.
  std::uint64_t most(std::uint32_t& at) const {
    const std::size_t n = trace_.accesses.size();
    std::vector<std::int64_t> change(n + 1, 0);
    std::vector<std::uint32_t> pinned_until(blocks_.size(), 0);
    for (std::uint32_t t = 0; t < n; ++t) {
      const Access& a = trace_.accesses[t];
      if (a.tier != tier_) continue;
      std::uint32_t& until = pinned_until[a.block.value];
      const std::uint32_t from = std::max(t, until);  // a block pinned twice lies in its frames once
      if (a.release_tick <= from) continue;
      change[from] += static_cast<std::int64_t>(frames(a.block));
      change[a.release_tick] -= static_cast<std::int64_t>(frames(a.block));
      until = a.release_tick;
    }
    std::uint64_t peak = 0, workspace = workspace_at_end();
    std::int64_t pinned = 0;
    std::size_t next = 0;
    for (std::uint32_t t = 0; t < n; ++t) {
      pinned += change[t];
      for (; next < trace_.workspace.size() && trace_.workspace[next].tick <= t; ++next)
        if (trace_.workspace[next].tier == tier_) workspace = trace_.workspace[next].bytes;
      const std::uint64_t now = static_cast<std::uint64_t>(pinned) + ceil_div(workspace, frame_bytes_);
      if (now <= peak) continue;
      peak = now;
      at = t;
    }
    return peak;
  }

  /// Of the blocks that come to this tier; the host sees all.
  std::uint64_t largest_block() const {
    std::uint64_t largest = 0;
    for (const Access& a : trace_.accesses)
      if (tier_ == Tier::host || a.tier == tier_) largest = std::max(largest, frames(a.block));
    return largest;
  }

 private:
  std::uint64_t frames(BlockId b) const { return ceil_div(blocks_[b.value].bytes, frame_bytes_); }
  std::uint64_t workspace_at_end() const {
    std::uint64_t bytes = 0;
    for (const WorkspaceChange& change : trace_.workspace)
      if (change.tier == tier_) bytes = change.bytes;
    return bytes;
  }

  const Trace& trace_;
  const std::vector<BlockSpec>& blocks_;
  const std::uint64_t frame_bytes_;
  const Tier tier_;
};

}  // namespace

LeastBudget least_budget(const Trace& trace, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes,
                         bool device) {
  LeastBudget least;
  const PinnedFrames host(trace, blocks, frame_bytes, Tier::host);
  // The host has two links to nvme, and two more to a device; the device has the latter.
  const std::uint64_t host_links = device ? 4 : 2;
  least.host_bytes = (host.most(least.tick[1]) + host_links * host.largest_block()) * frame_bytes;
  if (device) {
    const PinnedFrames on_device(trace, blocks, frame_bytes, Tier::device);
    least.device_bytes = (on_device.most(least.tick[0]) + 2 * on_device.largest_block()) * frame_bytes;
  }
  return least;
}

}  // namespace transload
