// One tier of the steady state: which copies stay between their uses.
//
// A period is a row of positions; each position holds at most one use of one block. Between two neighbouring uses of a
// block lies a *gap*; the whole plan of a tier is the choice of the gaps over which the copy stays. Room that pins take
// is not a choice: it is taken off the capacity first. Then any choice whose sum of frames fits at every position of
// the circle is a plan that can follow itself forever, and what it moves can be read off it:
//  - a gap not kept whose later use needs the content is a fetch;
//  - the first gap not kept in the life of a version is a write-back (the tier below then has the version).
#pragma once

#include <cstdint>
#include <vector>

namespace transload {

enum class TierOp : std::uint8_t {
  none,     ///< nothing of this tier happens here
  read,     ///< as AccessKind
  write,    ///< as AccessKind
  update,   ///< as AccessKind
  consume,  ///< as AccessKind
  flush,    ///< the tier below needs the content; the copy here stays valid
  take,     ///< the tier below needs the content and makes a new version of it: the copy here is dead afterwards
  kill,     ///< another tier made a new version, or ended the content, without needing this copy
};

struct TierUse {
  std::uint32_t block = UINT32_MAX;
  TierOp op = TierOp::none;
  std::uint32_t tick = 0;     ///< of the trace
  std::uint32_t release = 0;  ///< position from which on the copy is not pinned by this use; > own position
  bool above = false;         ///< read: the tier above takes a copy; kill: that tier needed the content
};

struct TierProblem {
  std::vector<TierUse> uses;                ///< by position
  std::vector<std::uint64_t> usable;        ///< frames for blocks at each position (budget less workspace)
  std::vector<std::uint64_t> frames;        ///< by block
  std::vector<std::uint64_t> bytes;         ///< by block
  std::uint64_t in_flight = 0;              ///< frames kept for transfers, as far as pins leave them
  std::uint64_t constant = 0;               ///< frames of blocks that lie here and are not used
  bool may_evict = true;                    ///< false: there is nothing below; living content stays
  const std::vector<bool>* held = nullptr;  ///< by block: the copies over the period's end, where they are given
};

/// A fetch, drop or write-back; positions are of the period, ticks of the trace.
struct TierFetch {
  std::uint32_t block, position, tick;
  std::uint32_t lead_ticks;  ///< room for it is free this many ticks ahead
};
struct TierDrop {
  std::uint32_t block, tick;  ///< after the access of this tick is released
  bool write;                 ///< the tier below lacks the version and will be asked for it
};
struct TierWrite {
  std::uint32_t block, tick;  ///< due when this tick begins
};

struct TierPlan {
  bool feasible = true;
  std::uint32_t worst_position = 0;     ///< where most room is needed (relative to what is usable when infeasible)
  std::uint64_t pinned_frames = 0;      ///< at worst_position
  std::vector<TierFetch> fetches;       ///< by position
  std::vector<TierDrop> drops;          ///< by tick
  std::vector<TierWrite> writes;        ///< by tick
  std::vector<bool> held;               ///< by block: its copy stays over the period's end
  std::vector<std::uint64_t> occupied;  ///< frames of blocks at each position
  std::uint64_t fetch_bytes = 0, write_bytes = 0;
};

/// `ticks`: accesses in the trace (a tick that ends the period is tick 0 of the next).
TierPlan plan_tier(const TierProblem& problem, std::uint32_t ticks);

}  // namespace transload
