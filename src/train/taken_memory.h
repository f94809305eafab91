// The plans of a run, and what it takes of its budgets: what the plans use, and room for what comes early or leaves
// late. The rest would never be used and is left to others. Whoever gives just that much moves no more. Pure.
#pragma once

#include "train/planning.h"

namespace transload {

/// The largest of the blocks that move whatever the budget.
std::uint64_t largest_durable(const std::vector<BlockSpec>& blocks);

/// What a step of `code` planned by plan_memory moves over the device's two links; UINT64_MAX where it does not fit.
std::uint64_t device_link_bytes(const StepCode& code, const Budgets& budgets, std::uint64_t most_room);

/// Fills in plan, cycle, room for transfers and what is used, for code and budgets of `planned`; budgets become what is
/// taken of them (LRU, which is there to compare, takes all). `most_room`: for transfers; `least`: below which no
/// budget goes.
void plan_memory(Prepared& planned, std::uint64_t most_room, const LeastBudget& least, const TrainOptions& options);

}  // namespace transload
