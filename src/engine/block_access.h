// BlockAccess: what step code sees of the engine. The engine implements it over real tiers; DryRun implements it over
// nothing and only records (the trace). One thread issues all calls (the issuing thread); streams release pins.
#pragma once

#include <cstdint>

#include "base/block_view.h"
#include "base/event.h"
#include "base/ids.h"
#include "base/trace_types.h"
#include "offload/stream.h"

namespace transload {

/// The right to use a block where it is. Move-only; must be given back with unpin (a pin destroyed while held is a
/// bug, except while an exception unwinds).
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& o) noexcept
      : view(o.view),
        ready(o.ready),
        block(o.block),
        tier(o.tier),
        kind(o.kind),
        found(o.found),
        tick(o.tick),
        owed_frames(o.owed_frames) {
    o.block = {};
  }
  Pin& operator=(Pin&& o) noexcept {
    view = o.view;
    ready = o.ready;
    block = o.block;
    tier = o.tier;
    kind = o.kind;
    found = o.found;
    tick = o.tick;
    owed_frames = o.owed_frames;
    o.block = {};
    return *this;
  }
  bool held() const { return block.valid(); }

  BlockView view;
  Event ready;  ///< the bytes are there; streams wait for it before the first use (done already for `write`)
  BlockId block;
  Tier tier = Tier::host;
  AccessKind kind = AccessKind::read;
  Found found = Found::none;  ///< for the record
  std::uint32_t tick = 0;
  std::uint32_t owed_frames = 0;  ///< the engine's: host room for what leaves the device when this pin is given back
};

class BlockAccess {
 public:
  virtual ~BlockAccess() = default;

  /// Pins `block` at `tier` (device or host). Returns when room is taken and transfers are queued; use `ready` before
  /// touching bytes. Waits for pins of the same block that conflict (a writer, or readers when this one writes).
  /// A read, update or consume of a block without content is a bug (TRANSLOAD_CHECK).
  /// Throws the engine's first error once it has failed.
  virtual Pin pin(BlockId block, Tier tier, AccessKind kind) = 0;

  /// Throws the first error of any transfer. A pin is ready also when its transfer has failed: whoever cannot undo what
  /// it does with the bytes asks here between `ready` and the first use.
  virtual void rethrow_if_failed() const {}

  /// Gives the pin back when everything launched on `stream` so far has ended. A write or update becomes the block's
  /// current version then; consume leaves it dead.
  virtual void unpin(Pin pin, Stream& stream) = 0;

  /// The contiguous workspace of a tier, 2 MiB-aligned where it is large, content not kept over a change. Growing
  /// evicts or moves blocks; work launched before may still use the old one only if the caller synchronized its streams
  /// first. nullptr in a dry run. At most one a tier.
  virtual std::byte* workspace(Tier tier, std::uint64_t bytes) = 0;

  /// Marks the next access as the first one of backward (once a step).
  virtual void begin_backward() = 0;
  virtual bool dry() const = 0;
};

}  // namespace transload
