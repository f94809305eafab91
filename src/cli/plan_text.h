// The texts made from a RunPlan: what lives where, what moves, what it means for a drive.
#pragma once

#include <string>

#include "train/trainer.h"

namespace transload::cli {

/// A few lines at the start of a run.
std::string start_text(const RunPlan& plan, const TrainOptions& options);
/// The table of `transload plan`; what of it depends on rates is forecast_text's.
std::string plan_text(const RunPlan& plan, const TrainOptions& options);
/// What is written to one drive.
struct Wear {
  double step_bytes = 0;  ///< of all ranks whose stores lie there
  int ranks = 1;
  bool commits = false;  ///< counted in
};
/// Of steps as this rank's, on all ranks of this machine.
Wear steps_alone(std::uint64_t rank_bytes, const TrainOptions& options);
/// What that means for the drive of `folder`; `step_s` 0: not known yet.
std::string wear_text(const Wear& wear, const std::string& folder, double step_s, std::uint64_t steps);
/// Bytes that a drive is taken to stand being written; 0: its size is not known.
double endurance_bytes(const std::string& folder);

}  // namespace transload::cli
