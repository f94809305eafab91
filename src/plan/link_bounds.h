// Lower bounds of the bytes each link carries a step, over all policies.
#pragma once

#include "plan/bounds.h"
#include "plan/planner.h"

namespace transload {

/// Fetches from nvme: device and host together are one cache of their summed capacity.
CacheProblem memory_problem(const PlanInput& input);

/// Fills one bound a link.
void find_link_bounds(const PlanInput& input, std::uint64_t (&bound)[kLinks]);

}  // namespace transload
