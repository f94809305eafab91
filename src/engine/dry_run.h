// DryRun: step code over shapes alone. Nothing is allocated, nothing computed; what it would access is recorded.
#pragma once

#include "engine/block_access.h"
#include "trace/tracer.h"

namespace transload {

class DryRun final : public BlockAccess {
 public:
  Pin pin(BlockId block, Tier tier, AccessKind kind) override;
  void unpin(Pin pin, Stream& stream) override;
  std::byte* workspace(Tier tier, std::uint64_t bytes) override;
  void begin_backward() override { tracer_.begin_backward(); }
  bool dry() const override { return true; }

  Stream& stream() { return stream_; }
  /// What was recorded since the last take.
  Trace take_trace() { return tracer_.take(); }

 private:
  Tracer tracer_;
  NullStream stream_;
};

}  // namespace transload
