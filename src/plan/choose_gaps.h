// The choice of gaps: farthest next use with write-back cost, closed to a circle.
#pragma once

#include <vector>

#include "plan/gaps.h"

namespace transload {

/// keep[g] for every gap. `write_weight`: the price of a byte written where a byte fetched costs 1.
/// Feasible by construction: kept gaps fit in the room at every position of the circle.
std::vector<char> choose_gaps(const TierProblem& problem, const GapProblem& gaps, double write_weight);

}  // namespace transload
