// RecordingAccess: the engine as step code sees it. It notes an event a pin for the run record, and takes the trace of
// a live step where one is asked for. Room for events is taken once; accesses beyond it are not noted.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/timeline.h"
#include "engine/block_access.h"
#include "trace/run_record.h"
#include "trace/tracer.h"

namespace transload {

class RecordingAccess final : public BlockAccess {
 public:
  RecordingAccess(BlockAccess& inner, std::size_t most_events) : inner_(inner) { events_.reserve(most_events); }

  /// `tracing`: take_trace() may follow the step. Times count from `start_ns`.
  void begin_step(bool tracing, std::uint64_t start_ns = host_clock_ns());
  const std::vector<AccessEvent>& events() const { return events_; }
  Trace take_trace();

  Pin pin(BlockId block, Tier tier, AccessKind kind) override;
  void unpin(Pin pin, Stream& stream) override;
  std::byte* workspace(Tier tier, std::uint64_t bytes) override;
  void begin_backward() override;
  bool dry() const override { return inner_.dry(); }
  void rethrow_if_failed() const override { inner_.rethrow_if_failed(); }

 private:
  Pin noted_pin(BlockId block, Tier tier, AccessKind kind);
  BlockAccess& inner_;
  std::uint64_t step_start_ns_ = 0;
  std::vector<AccessEvent> events_;
  bool tracing_ = false;
  Tracer tracer_;
  std::vector<std::pair<BlockId, std::uint32_t>> held_;  // pins and their ticks in the trace
};

}  // namespace transload
