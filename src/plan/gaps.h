// Gaps between neighbouring uses of a block, and the room that pins take: the problem that the choice of gaps solves.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/tier_plan.h"

namespace transload {

struct Gap {
  std::uint32_t block = 0;
  std::uint32_t last_use = 0;  ///< position of the use that releases the copy (the gap's drop hangs on it)
  std::uint32_t from = 0;      ///< first position of the gap, < n
  std::uint32_t to = 0;        ///< position of the next use, ≥ from; ≥ n when the gap crosses the period's end
  std::uint32_t next_use = 0;  ///< to, within the period
  bool alive = false;          ///< there is content in the copy
  bool fetch = false;          ///< the next use needs content, which exists somewhere
  bool flushed = false;        ///< the tier below gets the version within the gap whatever is chosen
  bool spared_write = true;    ///< keeping it can spare a write-back
  bool wanted_below = true;    ///< who drops it has to leave the version there
  bool empty() const { return from == to; }
};

struct GapProblem {
  std::vector<Gap> gaps;  ///< block by block, in the order of uses
  /// uses_of(block): its positions in order.
  std::vector<std::uint32_t> use_positions, first_use;
  std::vector<std::uint64_t> pinned;  ///< frames by position
  std::vector<std::uint64_t> room;    ///< frames by position that kept gaps may take
  bool feasible = true;
  std::uint32_t worst = 0;  ///< position where the pinned frames leave least (most negative) room
};

GapProblem find_gaps(const TierProblem& problem);

constexpr bool makes_version(TierOp op) { return op == TierOp::write || op == TierOp::update; }
constexpr bool needs_content(TierOp op) { return op == TierOp::read || op == TierOp::update || op == TierOp::consume; }
constexpr bool resides(TierOp op) { return needs_content(op) || op == TierOp::write; }
constexpr bool ends_copy(TierOp op) { return op == TierOp::consume || op == TierOp::take || op == TierOp::kill; }
constexpr bool leaves_copy(TierOp op) { return op == TierOp::read || makes_version(op); }

}  // namespace transload
