// What a planned run will use and how long its steps will take, from rates that were measured or stated before it.
// Pure: no clock, no memory, no files.
#pragma once

#include <string>

#include "plan/memory_peaks.h"
#include "plan/planner.h"
#include "train/collective_rates.h"
#include "train/planning.h"

namespace transload {

/// What a machine can do. 0: not known.
struct MachineRates {
  Rates links;
  double products = 0;          ///< FLOP/s that a step's products reach, all that goes with them counted in
  double updates = 0;           ///< parameters a second that the optimizer updates in host memory
  CollectiveRates collectives;  ///< of several ranks
  std::string source;           ///< for people: where these come from, with a date
};

struct Forecast {
  TierPeak peaks[2];                      ///< device, host
  std::uint64_t used_bytes[2] = {};       ///< the most that the run will have in use
  std::uint64_t buffer_bytes[2] = {};     ///< of the ranks' transport, beside it
  std::uint64_t in_flight_bytes[2] = {};  ///< of it, room for transfers on their way
  std::uint64_t second_slot_bytes = 0;    ///< of the store: versions that the last commit still holds
  double tokens = 0;                      ///< a step, of this rank
  double gathered_bytes = 0;              ///< a step, of whole chunks' weights
  double scattered_bytes = 0;             ///< a step, of whole chunks' gradients
  bool timed = false;                     ///< rates of all that the plan needs are known; else the rest is 0
  StepTime time;
  double gather_s = 0, scatter_s = 0;  ///< of time.collectives_s
  double hidden_from[kLinks] = {};     ///< tokens a step from which a link takes no longer than computation
  double tokens_per_s() const { return time.step_s > 0 ? tokens / time.step_s : 0; }
};

/// Forward's part of the products of a step: one pass of three, or of four with recomputation.
constexpr double forward_share(const StepShape& shape) {
  return shape.recompute == Recompute::layer ? 1.0 / 4 : 1.0 / 3;
}

Forecast forecast(const Prepared& prepared, const TrainOptions& options, const MachineRates& rates);

}  // namespace transload
