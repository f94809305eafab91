// RecordingAccess: the engine as step code sees it, and an event a pin for the run record. Room for the events is taken
// once; accesses beyond it are not recorded.
#pragma once

#include <chrono>
#include <vector>

#include "engine/block_access.h"
#include "trace/run_record.h"

namespace transload {

class RecordingAccess final : public BlockAccess {
 public:
  RecordingAccess(BlockAccess& inner, std::size_t most_events) : inner_(inner) { events_.reserve(most_events); }

  void begin_step() {
    events_.clear();
    step_start_ = Clock::now();
  }
  const std::vector<AccessEvent>& events() const { return events_; }

  Pin pin(BlockId block, Tier tier, AccessKind kind) override {
    const auto asked = Clock::now();
    Pin pin = inner_.pin(block, tier, kind);
    if (events_.size() < events_.capacity())
      events_.push_back({.start_ns = nanoseconds(asked - step_start_),
                         .wait_ns = nanoseconds(Clock::now() - asked),
                         .block = block,
                         .tier = tier,
                         .kind = kind,
                         .ready = pin.ready.done()});
    return pin;
  }
  void unpin(Pin pin, Stream& stream) override { inner_.unpin(std::move(pin), stream); }
  std::byte* workspace(Tier tier, std::uint64_t bytes) override { return inner_.workspace(tier, bytes); }
  void begin_backward() override { inner_.begin_backward(); }
  bool dry() const override { return inner_.dry(); }

 private:
  using Clock = std::chrono::steady_clock;
  static std::uint64_t nanoseconds(Clock::duration d) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  }
  BlockAccess& inner_;
  Clock::time_point step_start_ = Clock::now();
  std::vector<AccessEvent> events_;
};

}  // namespace transload
