#include "plan/liveness.h"

#include <algorithm>

#include "base/size.h"

namespace transload {

namespace {

/// Blocks that have content when the step begins: the first access finds it.
std::vector<bool> live_at_start(const Trace& trace, std::size_t blocks) {
  std::vector<bool> live(blocks), seen(blocks);
  for (const Access& access : trace.accesses) {
    if (!seen[access.block.value]) live[access.block.value] = needs_content(access.kind);
    seen[access.block.value] = true;
  }
  return live;
}

}  // namespace

Live most_live(const Trace& trace, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes,
               const std::function<bool(const BlockSpec&)>& counts) {
  Live now, most;
  std::vector<bool> live = live_at_start(trace, blocks.size());
  const auto set = [&](std::uint32_t b, bool on) {
    const std::uint64_t bytes = round_up(blocks[b].bytes, frame_bytes);
    now.blocks += on ? 1 : -std::uint64_t{1};
    now.bytes += on ? bytes : -bytes;
    live[b] = on;
    most = {std::max(most.blocks, now.blocks), std::max(most.bytes, now.bytes)};
  };
  for (std::uint32_t b = 0; b < live.size(); ++b)
    if (live[b] && counts(blocks[b])) set(b, true);
  // What is consumed has its content until the access is released.
  std::vector<std::vector<std::uint32_t>> consumed(trace.accesses.size() + 1);
  for (std::uint32_t tick = 0; tick < trace.accesses.size(); ++tick) {
    for (const std::uint32_t b : consumed[tick]) set(b, false);
    const Access& access = trace.accesses[tick];
    const std::uint32_t b = access.block.value;
    if (!counts(blocks[b])) continue;
    if (!live[b]) set(b, true);
    if (access.kind == AccessKind::consume) consumed[access.release_tick].push_back(b);
  }
  return most;
}

}  // namespace transload
