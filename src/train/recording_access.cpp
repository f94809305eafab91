#include "train/recording_access.h"

#include <algorithm>

namespace transload {

void RecordingAccess::begin_step(bool tracing, std::uint64_t start_ns) {
  events_.clear();
  held_.clear();
  tracer_ = Tracer();
  tracing_ = tracing;
  step_start_ns_ = start_ns;
}

Trace RecordingAccess::take_trace() {
  tracing_ = false;
  return tracer_.take();
}

Pin RecordingAccess::noted_pin(BlockId block, Tier tier, AccessKind kind) {
  const std::uint64_t asked_ns = host_clock_ns();
  Pin pin = inner_.pin(block, tier, kind);
  events_.push_back({.start_ns = asked_ns - step_start_ns_,
                     .wait_ns = host_clock_ns() - asked_ns,
                     .block = block,
                     .tier = tier,
                     .kind = kind,
                     .found = pin.found,
                     .ready = pin.ready.done()});
  return pin;
}

Pin RecordingAccess::pin(BlockId block, Tier tier, AccessKind kind) {
  Pin pin = events_.size() < events_.capacity() ? noted_pin(block, tier, kind) : inner_.pin(block, tier, kind);
  if (tracing_) held_.emplace_back(block, tracer_.access(block, tier, kind));
  return pin;
}

void RecordingAccess::unpin(Pin pin, Stream& stream) {
  if (tracing_) {
    const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) { return h.first == pin.block; });
    if (held != held_.end()) {
      tracer_.release(held->second);
      held_.erase(held);
    }
  }
  inner_.unpin(std::move(pin), stream);
}

std::byte* RecordingAccess::workspace(Tier tier, std::uint64_t bytes) {
  if (tracing_) tracer_.workspace(tier, bytes);
  return inner_.workspace(tier, bytes);
}

void RecordingAccess::begin_backward() {
  if (tracing_) tracer_.begin_backward();
  inner_.begin_backward();
}

}  // namespace transload
