// make_plan: the device first, then the host with what the device does to it, then the bounds.
//
// How the lists are meant:
//  - fetches[tier]: in order of need_tick, once around the step; after the last comes the first again, for the next
//    step. A fetch may be issued from `lead` accesses ahead. Where its block is still in the tier (its drop is yet to
//    come), it waits for the drop: it is not superfluous.
//  - drops[tier]: the copy leaves once the access of after_tick is released; a version that the tier below lacks is
//    written there first. Content that a `consume` ended needs no entry.
//  - On the host, ticks may be those of device accesses: need_tick of a device fetch that needs its source here,
//    after_tick when the copy down to the device, or up from it, is over.
//  - A pin that makes a version, or consumes one, ends the copies of other tiers when it begins.
#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/size.h"
#include "plan/link_bounds.h"
#include "plan/tier_sequences.h"

namespace transload {

namespace {

[[noreturn]] void refuse(const PlanInput& input, Tier tier, const TierProblem& problem, const TierPlan& plan) {
  const std::uint64_t frame = input.budgets.frame_bytes, given = input.budgets.of(tier);
  const std::uint64_t missing = plan.pinned_frames - problem.usable[plan.worst_position];
  const std::uint32_t tick = problem.uses[plan.worst_position].tick;
  const std::uint64_t workspace = workspace_by_tick(*input.trace, tier)[tick];
  const std::uint64_t needed =
      std::max(given / frame * frame + missing * frame, plan.pinned_frames * frame + round_up(workspace, frame));
  const std::string& block = (*input.blocks)[input.trace->accesses[tick].block.value].name;
  const auto [needed_text, given_text] = format_sizes(needed, given);
  const char* advice = tier == Tier::host && input.budgets.nvme_bytes == 0
                           ? "Give that much, or room on NVMe so that blocks can leave memory."
                           : "Give that much, or choose smaller chunks or fewer samples at once.";
  throw BudgetError(
      fmt::format("The {} memory budget is too small: access {} of a step ({}) needs {} of blocks and {} of workspace "
                  "at once, {} in all, and {} is given. {}",
                  name_of(tier), tick, block, format_size(plan.pinned_frames * frame), format_size(workspace),
                  needed_text, given_text, advice),
      needed, given);
}

TierPlan plan_or_refuse(const PlanInput& input, Tier tier, const TierProblem& problem) {
  TierPlan plan = plan_tier(problem, static_cast<std::uint32_t>(input.trace->accesses.size()));
  if (!plan.feasible) refuse(input, tier, problem, plan);
  return plan;
}

void copy_lists(const PlanInput& input, Tier tier, const TierProblem& problem, const TierPlan& from, Plan& to) {
  const auto t = static_cast<std::size_t>(tier);
  for (const TierFetch& f : from.fetches) to.fetches[t].push_back({BlockId(f.block), f.tick, f.lead_ticks});
  for (const TierDrop& d : from.drops) to.drops[t].push_back({BlockId(d.block), d.tick, d.write});
  for (const TierWrite& w : from.writes) to.writes[t].push_back({BlockId(w.block), w.tick});
  to.held[t] = from.held;
  const std::vector<std::uint64_t> workspace = workspace_by_tick(*input.trace, tier);
  const std::uint64_t frame = input.budgets.frame_bytes;
  for (std::size_t p = 0; p < from.occupied.size(); ++p)
    to.peak_bytes[t] =
        std::max(to.peak_bytes[t], from.occupied[p] * frame + round_up(workspace[problem.uses[p].tick], frame));
}

/// `between`: the plan of the steps before and after; null where the step follows itself.
Plan plan_tiers(const PlanInput& input, const Plan* between) {
  Plan plan;
  if (input.trace->accesses.empty()) return plan;
  const auto held = [&](Tier tier) { return between == nullptr ? nullptr : &between->held[static_cast<int>(tier)]; };
  TierPlan device;
  const bool has_device = input.budgets.device_bytes > 0;
  if (has_device) {
    TierProblem problem = device_problem(input);
    problem.held = held(Tier::device);
    device = plan_or_refuse(input, Tier::device, problem);
    copy_lists(input, Tier::device, problem, device, plan);
    plan.bytes[static_cast<int>(Link::host_to_device)] = device.fetch_bytes;
    plan.bytes[static_cast<int>(Link::device_to_host)] = device.write_bytes;
  }
  TierProblem problem = host_problem(input, has_device ? &device : nullptr);
  problem.held = held(Tier::host);
  const TierPlan host = plan_or_refuse(input, Tier::host, problem);
  copy_lists(input, Tier::host, problem, host, plan);
  plan.bytes[static_cast<int>(Link::nvme_read)] = host.fetch_bytes;
  plan.bytes[static_cast<int>(Link::nvme_write)] = host.write_bytes;
  return plan;
}

}  // namespace

Plan make_plan(const PlanInput& input) {
  Plan plan = plan_tiers(input, nullptr);
  if (!input.trace->accesses.empty()) find_link_bounds(input, plan.lower_bound);
  return plan;
}

Plan plan_between(const PlanInput& input, const Plan& steady) {
  Plan plan = plan_tiers(input, &steady);
  plan.once = true;
  return plan;
}

LinkBytes bytes_for(const Plan& plan, const std::vector<BlockSpec>& blocks, std::uint32_t first, std::uint32_t last) {
  LinkBytes moved;
  const auto count = [&](Link link, BlockId block) {
    moved.bytes[static_cast<int>(link)] += blocks[block.value].bytes;
  };
  for (const Tier tier : {Tier::device, Tier::host}) {
    const bool device = tier == Tier::device;
    for (const Plan::Fetch& f : plan.fetches[static_cast<int>(tier)])
      if (f.need_tick >= first && f.need_tick < last) count(device ? Link::host_to_device : Link::nvme_read, f.block);
    for (const Plan::Write& w : plan.writes[static_cast<int>(tier)])
      if (w.by_tick > first && w.by_tick <= last) count(device ? Link::device_to_host : Link::nvme_write, w.block);
  }
  return moved;
}

std::optional<DeviceLinks> plan_device_links(const PlanInput& input) {
  const TierProblem problem = device_problem(input);
  const TierPlan device = plan_tier(problem, static_cast<std::uint32_t>(input.trace->accesses.size()));
  if (!device.feasible) return std::nullopt;
  Plan plan;
  copy_lists(input, Tier::device, problem, device, plan);
  return DeviceLinks{device.fetch_bytes, device.write_bytes, plan.peak_bytes[0]};
}

}  // namespace transload
