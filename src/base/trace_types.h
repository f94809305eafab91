// The records that trace, plan and engine exchange. A trace is the list of accesses of one step; ticks number them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace transload {

enum class AccessKind : std::uint8_t {
  read,     ///< needs the content, leaves it
  write,    ///< makes the content anew: nothing is fetched, a new version begins
  update,   ///< needs the content and leaves a new version
  consume,  ///< needs the content and leaves none: the block is dead until its next `write`
};
constexpr bool needs_content(AccessKind k) { return k != AccessKind::write; }
constexpr bool makes_version(AccessKind k) { return k == AccessKind::write || k == AccessKind::update; }

/// Where the bytes of an access were when it was asked for.
enum class Found : std::uint8_t {
  none,    ///< it needs no content
  hit,     ///< there
  late,    ///< on their way
  demand,  ///< to be fetched now
};

/// What the planner and the engine must know of a block. Blocks are numbered 0…n−1 (BlockId).
struct BlockSpec {
  std::string name;         ///< for messages: "chunk 12 moment1", "layer 3 input 0"
  std::uint64_t bytes = 0;  ///< of this rank's shard; > 0
  bool durable = true;      ///< part of the committed state; false: transient (gradients, kept layer inputs)
  std::string plane;        ///< "weight", "residue", "moment1", "moment2", "gradient", "partial", "kept"
};

/// One access: block pinned at `tier` from its tick (its index in Trace::accesses) until just before access number
/// `release_tick` (> its tick; may be the number of accesses: until the end of the step).
struct Access {
  BlockId block;
  Tier tier = Tier::host;
  AccessKind kind = AccessKind::read;
  std::uint32_t release_tick = 0;
};

/// From `tick` on, `bytes` of `tier` are in use by workspace (contiguous, no block may lie there).
struct WorkspaceChange {
  std::uint32_t tick = 0;
  Tier tier = Tier::host;
  std::uint64_t bytes = 0;
};

struct Trace {
  std::vector<Access> accesses;
  std::vector<WorkspaceChange> workspace;  ///< ascending ticks; before the first of a tier: 0
  std::uint32_t backward_tick = 0;         ///< accesses from here on are backward's; the verdict is at the step's end
  std::uint32_t commit_tick = UINT32_MAX;  ///< before this access the store gets every durable version; never: none
  std::vector<std::uint64_t> time_ns;      ///< measured start of each access; empty before the first live step
};

/// Bytes of each tier that blocks and workspace may take; frame: the grain of allocation in device and host.
struct Budgets {
  std::uint64_t device_bytes = 0;  ///< 0: no device tier
  std::uint64_t host_bytes = 0;
  std::uint64_t nvme_bytes = 0;  ///< 0: no store, nothing may be evicted to nvme
  std::uint64_t frame_bytes = 0;
  std::uint64_t of(Tier t) const {
    return t == Tier::device ? device_bytes : t == Tier::host ? host_bytes : nvme_bytes;
  }
};

/// Bytes a second of each link; 0: unknown. And of the processor.
struct Rates {
  double nvme_read = 0, nvme_write = 0, nvme_duplex = 0;  ///< duplex: sum of both directions when both run
  double host_to_device = 0, device_to_host = 0;
  double memory = 0;  ///< host memory, read + written bytes a second
};

enum class Link : std::uint8_t { nvme_read = 0, nvme_write = 1, host_to_device = 2, device_to_host = 3 };
inline constexpr int kLinks = 4;
constexpr const char* name_of(Link l) {
  switch (l) {
    case Link::nvme_read:
      return "nvme_read";
    case Link::nvme_write:
      return "nvme_write";
    case Link::host_to_device:
      return "host_to_device";
    case Link::device_to_host:
      return "device_to_host";
  }
  return "?";
}

/// What to do when, in the steady state where one traced step follows another. A hint: law 2.
struct Plan {
  struct Fetch {
    BlockId block;
    std::uint32_t need_tick = 0;  ///< the access it serves, of this step or the next: the list is a circle
    /// Room is free for it from `lead` accesses before need_tick on (in the step before where that is negative): issued
    /// no earlier, it takes no room that the plan gives to others. Always after the block's own drop.
    std::uint32_t lead = 0;
  };
  struct Drop {
    BlockId block;
    std::uint32_t after_tick = 0;  ///< leave the tier once the access of this tick is released
    bool write = false;            ///< the tier below gets the version first, where it lacks it
  };
  struct Write {
    BlockId block;
    std::uint32_t by_tick = 0;  ///< on its way when this access begins
  };
  /// Indexed by tier (device, host). Fetches are in order of need; drops in order of after_tick; writes, of by_tick,
  /// are what the tier below gets for drops, for accesses there and for a commit.
  std::vector<Fetch> fetches[2];
  std::vector<Drop> drops[2];
  std::vector<Write> writes[2];
  std::vector<bool> held[2];  ///< by block: the copy stays from one step to the next
  bool once = false;          ///< another plan follows: nothing is fetched for the same accesses again

  std::uint64_t bytes[kLinks] = {};        ///< predicted a step, steady state
  std::uint64_t lower_bound[kLinks] = {};  ///< proven: no schedule moves less under these budgets
  std::uint64_t peak_bytes[2] = {};        ///< of blocks and workspace, device and host
};

/// Where ranks share chunks: which chunks' weights are gathered when, in a pass that uses them in a known order.
struct GatherPlan {
  struct Use {
    ChunkId chunk;
    std::vector<ChunkId> gather;  ///< to be gathered before this use, in this order: for it, or ahead of later ones
    bool last = true;             ///< nothing needs the gathered chunk until it is gathered again
  };
  std::vector<Use> uses;
  std::size_t room = 0;  ///< gathered chunks that there may be at once
};

}  // namespace transload
