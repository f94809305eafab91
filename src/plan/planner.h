// Planner: trace + budgets + rates → plan, bounds, prediction. Pure functions; no I/O, no threads, no clock.
//
// Steady state: the traced step follows itself forever. Tiers are planned from the top down: what the device tier
// fetches and writes back becomes an access of the host tier. Eviction: farthest next use, write-back cost counted
// (a dirty or unstored block costs a write; dead content costs nothing). A block leaves right after its last use before
// the fetch that needs its room, so fetches can start as early as room allows; order of fetches = order of need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/trace_types.h"

namespace transload {

struct LinkBytes {
  std::uint64_t bytes[kLinks] = {};
};

/// Blocks of all planes and kept inputs; the plan refers to them by index.
struct PlanInput {
  const Trace* trace = nullptr;
  const std::vector<BlockSpec>* blocks = nullptr;
  Budgets budgets;
  Rates rates;
  /// Room that device and host keep for transfers on their way (at most 8 transfers a link).
  std::uint64_t in_flight_bytes[2] = {0, 0};
};

/// The least budget of a tier: most bytes pinned at once (frames, workspace counted) plus one transfer a link.
struct LeastBudget {
  std::uint64_t device_bytes = 0, host_bytes = 0;
  std::uint32_t tick[2] = {0, 0};  ///< where it is needed
};
LeastBudget least_budget(const Trace& trace, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes,
                         bool device);

Plan make_plan(const PlanInput& input);

/// For passes that come once between steps that follow `steady`: begins with the copies that a steady step leaves, and
/// leaves the same as far as there is room. Without lower bounds.
Plan plan_between(const PlanInput& input, const Plan& steady);

/// What a plan moves for the accesses [first, last): fetches for them, and writes that they leave behind. (Those of the
/// last access of a period are due with its first.)
LinkBytes bytes_for(const Plan& plan, const std::vector<BlockSpec>& blocks, std::uint32_t first, std::uint32_t last);

/// What make_plan's plan moves over the device's two links a step, without planning the host; nothing where the
/// device's budget is too small. To choose between traces.
struct DeviceLinks {
  std::uint64_t up_bytes = 0, down_bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< of blocks and workspace, on the device
};
std::optional<DeviceLinks> plan_device_links(const PlanInput& input);

/// LRU on demand, the same accounting: bytes a link and step (to compare).
LinkBytes simulate_lru(const PlanInput& input);

/// Seconds of a step's collectives between ranks, before and from backward on. `beside`: a device's links carry them
/// while it computes; host transports copy with the processor that computes or updates, so they add to its work.
struct Collectives {
  double first_s = 0, backward_s = 0;
  bool beside = false;
  double all_s() const { return first_s + backward_s; }
};

/// What a step takes, from the plan's transfers, the rates and the compute time of forward(+update) and backward.
struct StepTime {
  double forward_s = 0, backward_s = 0, update_s = 0;  ///< computation, given
  double collectives_s = 0;                            ///< given
  double step_s = 0;                                   ///< simulated
  double lower_bound_s = 0;                            ///< sharper bound (DESIGN.md, physics)
  double plain_bound_s = 0;                            ///< plain maximum
  std::string binds;                                   ///< "computation", "nvme_read", …
};
StepTime predict_step(const PlanInput& input, const Plan& plan, double forward_s, double backward_s, double update_s,
                      const Collectives& collectives = {});

}  // namespace transload
