#include "train/commit_cycle.h"

#include <array>

#include "base/error.h"
#include "plan/joined.h"
#include "train/planning.h"

namespace transload {

double CommitCycle::a_step(Link link, std::uint64_t steps, std::uint64_t steady) const {
  const auto i = static_cast<std::size_t>(link);
  const std::uint64_t special = first.bytes[i] + (steps > 1 ? second.bytes[i] : 0);
  const std::uint64_t rest = steps > 2 ? (steps - 2) * steady : 0;
  return static_cast<double>(commit.bytes[i] + special + rest) / static_cast<double>(steps);
}

CommitCycle plan_commit(const StepCode& code, const PlanInput& step, const Plan& steady) {
  CommitCycle cycle;
  if (step.budgets.nvme_bytes == 0 || code.flush.accesses.empty()) return cycle;
  const std::array<const Trace*, 3> passes = {&code.flush, &code.fresh_step, &code.step};
  Trace trace = join(passes);
  const auto committed = static_cast<std::uint32_t>(code.flush.accesses.size());
  const auto fresh = committed + static_cast<std::uint32_t>(code.fresh_step.accesses.size());
  trace.commit_tick = committed;
  try {
    PlanInput input = step;
    input.trace = &trace;
    cycle.plan = plan_between(input, steady);
  } catch (const BudgetError&) {
    return cycle;  // the workspace that the step before left beside the updates: they come on demand
  }
  cycle.commit = bytes_for(cycle.plan, code.blocks, 0, committed);
  cycle.first = bytes_for(cycle.plan, code.blocks, committed, fresh);
  for (int i = 0; i < kLinks; ++i)
    cycle.second.bytes[i] = cycle.plan.bytes[i] - cycle.commit.bytes[i] - cycle.first.bytes[i];
  cycle.trace = std::move(trace);
  return cycle;
}

}  // namespace transload
