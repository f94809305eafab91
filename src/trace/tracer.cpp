#include "trace/tracer.h"

#include <utility>

#include "base/check.h"

namespace transload {

std::uint32_t Tracer::access(BlockId block, Tier tier, AccessKind kind) {
  trace_.accesses.push_back({block, tier, kind, 0});
  ++held_;
  return static_cast<std::uint32_t>(trace_.accesses.size() - 1);
}

void Tracer::release(std::uint32_t tick) {
  TRANSLOAD_CHECK(tick < trace_.accesses.size() && trace_.accesses[tick].release_tick == 0, "tick {} of {}", tick,
                  trace_.accesses.size());
  trace_.accesses[tick].release_tick = static_cast<std::uint32_t>(trace_.accesses.size());
  --held_;
}

void Tracer::workspace(Tier tier, std::uint64_t bytes) {
  trace_.workspace.push_back({static_cast<std::uint32_t>(trace_.accesses.size()), tier, bytes});
}

void Tracer::begin_backward() { trace_.backward_tick = static_cast<std::uint32_t>(trace_.accesses.size()); }

Trace Tracer::take() {
  TRANSLOAD_CHECK(held_ == 0, "{} pins are still held at the end of the trace", held_);
  return std::exchange(trace_, {});
}

}  // namespace transload
