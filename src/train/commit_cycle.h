// A commit and the two steps after it, which are no steady ones: the commit applies the pending updates, the store gets
// what it lacks, the first step after it has nothing to apply, and the second leaves memory as every steady step does.
// They are planned as one, from the end of a steady step to the beginning of the next. Pure.
#pragma once

#include "plan/planner.h"

namespace transload {

struct StepCode;

struct CommitCycle {
  Trace trace;  ///< pending updates, fresh step, step; empty without a store, or where there is no room to plan it
  Plan plan;
  LinkBytes commit, first, second;  ///< of plan
  bool planned() const { return !trace.accesses.empty(); }
  /// Bytes a step over a cycle of `steps` from commit to commit; `steady`: a planned step's.
  double a_step(Link link, std::uint64_t steps, std::uint64_t steady) const;
};

/// `step`: the input of `steady`, the plan of the steps before and after.
CommitCycle plan_commit(const StepCode& code, const PlanInput& step, const Plan& steady);

}  // namespace transload
