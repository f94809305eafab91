// What a run did, as it goes and at its end (summary.json, keys in docs/formats.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "plan/planner.h"
#include "train/planning.h"
#include "train/trainer.h"

namespace transload {

/// One step's share of a run's counters.
struct StepSample {
  double loss = 0, norm = 0, seconds = 0;
  double compute_s = 0, update_s = 0;  ///< kernels' time
  bool skipped = false;
  bool planned = false;  ///< a steady-state step: neither first nor right after a commit or an evaluation
};

class Summary {
 public:
  Summary(const TrainOptions& options, const Prepared& prepared, const Rates& rates, std::uint64_t first_step);

  void add(const StepSample& sample);
  void evaluated(std::uint64_t step, double loss) { evaluations_.emplace_back(step, loss); }
  /// The limit of a steady-state step: what its kernels took and the least bytes of each link at the measured rates.
  StepTime limit() const;
  std::size_t steady_steps() const { return steady_s_.size(); }  ///< seen, of the last 256
  /// Median of steady-state steps (of all while there is none); 0 before the first.
  double step_s_median() const;
  /// Limit over median; 0 while not known. The limit is a simulation: computed anew while the medians still move.
  double fraction_of_limit();

  std::string to_json(const EngineCounters& counters, const std::optional<Store::Facts>& store, bool interrupted,
                      std::uint64_t steps_seen, const Accelerator* accelerator) const;

 private:
  const TrainOptions& options_;
  const Prepared& prepared_;
  Rates rates_;
  std::uint64_t first_step_;
  std::vector<double> losses_, norms_;
  std::vector<double> steady_s_, other_s_, compute_s_, update_s_;
  double total_s_ = 0;
  double limit_s_ = 0;  ///< of the last time it was computed
  std::uint64_t skipped_ = 0;
  std::vector<std::pair<std::uint64_t, double>> evaluations_;
};

}  // namespace transload
