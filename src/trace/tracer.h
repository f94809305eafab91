// Tracer: turns pins and releases, in the order the issuing thread makes them, into a Trace. One thread.
#pragma once

#include "base/trace_types.h"

namespace transload {

class Tracer {
 public:
  /// Returns the access's tick.
  std::uint32_t access(BlockId block, Tier tier, AccessKind kind);
  /// The access of `tick` is over before the next one begins.
  void release(std::uint32_t tick);
  void workspace(Tier tier, std::uint64_t bytes);
  void begin_backward();
  /// Every access must have been released.
  Trace take();

 private:
  Trace trace_;
  std::uint32_t held_ = 0;
};

}  // namespace transload
