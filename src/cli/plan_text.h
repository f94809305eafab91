// The texts made from a RunPlan: what lives where, what moves, what it means for a drive.
#pragma once

#include <string>

#include "train/trainer.h"

namespace transload::cli {

/// A few lines at the start of a run.
std::string start_text(const RunPlan& plan, const TrainOptions& options);
/// The whole table of `transload plan`; `step_s` 0: not known. `here`: for this machine, whose drive is known.
std::string plan_text(const RunPlan& plan, const TrainOptions& options, double step_s, bool here);
/// What `bytes` written a step mean for the drive of `folder`; `step_s` 0: not known yet.
std::string wear_text(std::uint64_t bytes, const std::string& folder, double step_s, std::uint64_t steps);
/// Bytes that a drive is taken to stand being written; 0: its size is not known.
double endurance_bytes(const std::string& folder);

}  // namespace transload::cli
