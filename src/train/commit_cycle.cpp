#include "train/commit_cycle.h"

#include <algorithm>

#include "engine/rehearsal.h"

namespace transload {

double CommitCycle::a_step(Link link, std::uint64_t steps, std::uint64_t steady) const {
  const auto i = static_cast<std::size_t>(link);
  const std::uint64_t special = first.bytes[i] + (steps > 1 ? second.bytes[i] : 0);
  const std::uint64_t rest = steps > 2 ? (steps - 2) * steady : 0;
  return static_cast<double>(commit.bytes[i] + special + rest) / static_cast<double>(steps);
}

CommitCycle rehearse_commit(const Prepared& prepared, const Rates& rates) {
  CommitCycle cycle;
  const StepCode& code = prepared.code;
  if (prepared.plan.budgets.nvme_bytes == 0) return cycle;
  const Plan fresh = make_plan(plan_input(prepared, code.fresh_step, rates));
  Budgets budgets = prepared.plan.budgets;  // what is fetched ahead takes the room for transfers
  budgets.host_bytes -= std::min(budgets.host_bytes / 2, prepared.in_flight_bytes);
  Rehearsal rehearsal(code.blocks, budgets);
  rehearsal.follow(code.step, prepared.plan.plan);
  for (int i = 0; i < 2; ++i) rehearsal.step();  // the second one is steady
  cycle.commit = rehearsal.on_demand(code.flush);
  const LinkBytes written = rehearsal.commit();
  for (int i = 0; i < kLinks; ++i) cycle.commit.bytes[i] += written.bytes[i];
  // The step before has fetched ahead what the updates need first.
  std::uint64_t& read = cycle.commit.bytes[static_cast<std::size_t>(Link::nvme_read)];
  read -= std::min(read, prepared.in_flight_bytes);
  rehearsal.follow(code.fresh_step, fresh);
  cycle.first = rehearsal.step();
  rehearsal.follow(code.step, prepared.plan.plan);
  cycle.second = rehearsal.step();
  for (const Tier tier : {Tier::device, Tier::host})
    cycle.peak_bytes[static_cast<std::size_t>(tier)] = rehearsal.peak_bytes(tier);
  return cycle;
}

}  // namespace transload
