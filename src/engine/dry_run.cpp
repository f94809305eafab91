#include "engine/dry_run.h"

namespace transload {

Pin DryRun::pin(BlockId block, Tier tier, AccessKind kind) {
  Pin pin;
  pin.block = block;
  pin.tier = tier;
  pin.kind = kind;
  pin.tick = tracer_.access(block, tier, kind);
  return pin;
}

void DryRun::unpin(Pin pin, Stream&) { tracer_.release(pin.tick); }

std::byte* DryRun::workspace(Tier tier, std::uint64_t bytes) {
  tracer_.workspace(tier, bytes);
  return nullptr;
}

}  // namespace transload
