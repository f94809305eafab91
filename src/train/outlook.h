// What the planner says of a run's steady-state step, with the times that its kernels took, and of the same step with
// one setting changed: more memory of a tier, no recomputation, more micro-batches. A line of the run record
// (docs/formats.md, "outlook"), so that a report can say what a change would save.
//
// Pure but for the clock: alternatives are planned one after the other until kMostSeconds have gone.
#pragma once

#include <string>

#include "train/planning.h"
#include "train/summary.h"

namespace transload {

/// Every steady-state step's median must be known: `now` is the summary's limit(). The line's inside, without braces.
std::string outlook_fields(const TrainOptions& options, const Prepared& prepared, const Rates& rates,
                           const StepTime& now, Accelerator* accelerator, std::uint64_t step);

}  // namespace transload
