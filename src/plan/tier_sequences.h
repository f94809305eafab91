// What each tier has to do in a step: the trace seen from the device, and from the host once the device is planned.
#pragma once

#include "plan/planner.h"
#include "plan/tier_plan.h"

namespace transload {

/// Positions are ticks. Host accesses appear where they meet a block that the device uses (flush, take, kill).
TierProblem device_problem(const PlanInput& input);

/// Host accesses, and the device's traffic: a fetch reads the block here when it is due, a write-back writes it here,
/// a version made on the device ends the copy here. Several positions a tick; `device` is null without a device tier.
TierProblem host_problem(const PlanInput& input, const TierPlan* device);

/// By tick: this device access makes a version whose next access is the host's, which needs it. It goes down at once.
std::vector<bool> leaves_device(const Trace& trace, std::size_t blocks);

/// Bytes of workspace in use from each tick on.
std::vector<std::uint64_t> workspace_by_tick(const Trace& trace, Tier tier);

}  // namespace transload
