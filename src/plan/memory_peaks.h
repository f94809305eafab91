// What each tier holds at its fullest in a planned step, by use: for people who ask what their memory is for. Pure.
#pragma once

#include "base/timeline.h"
#include "plan/planner.h"

namespace transload {

struct TierPeak {
  std::uint64_t used = 0;  ///< the most at any tick: blocks in whole frames, and workspace
  MemoryBytes most{};      ///< of each use, the most at any tick; not all at the same one, so they may add up to more
};

/// In the steady state: blocks come when they are needed and leave when the plan drops them. What an engine fetches
/// ahead, and what is on its way, is not in it.
TierPeak memory_peak(const PlanInput& input, const Plan& plan, Tier tier);

}  // namespace transload
