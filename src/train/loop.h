// The loop: steps in order, plans, commits, evaluation, exports, the record; on a session that is ready.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "trace/run_record.h"
#include "train/inputs.h"
#include "train/planning.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/summary.h"

namespace transload {

/// The learning rate of the step that comes after `steps_seen` others.
double learning_rate(const TrainOptions& options, std::uint64_t steps_seen);

class Loop {
 public:
  Loop(const TrainOptions& options, Prepared& prepared, const Inputs& inputs, const RunFolder& folder, Session& session,
       const Observer& observer, Position start);

  /// Until the last step, or the end of the step in which `interrupt` became positive; commits then. Error after ten
  /// steps in a row that were not finite. Returns summary.json's text.
  std::string run(const std::atomic<int>& interrupt);

 private:
  /// Passes that have a plan of their own; a commit and the two steps after it have one together.
  enum class Pass { step, fresh_step, evaluation };
  struct PassPlan {
    Trace trace;
    Plan plan;
  };

  /// What all ranks must decide alike after a step: sums of theirs, and rank 0's or anyone's word.
  struct Agreement {
    double loss = 0;           ///< in: this rank's part; out: the sum
    bool interrupted = false;  ///< out: of any rank
    bool commit_due = false;   ///< out: by rank 0's clock
  };

  void step();
  void agree(Agreement& mine);
  bool interrupted() const;
  Verdict train_pass(Pass pass, double& loss, double lr);
  void use_plan(Pass pass);
  void set_plan(Pass pass);
  void end_plan();
  void begin_commit_cycle();
  void watch_deviations(bool planned, std::uint64_t deviations);
  std::string clock_fields() const;
  void report(Pass pass, double loss, const Verdict& verdict, double lr, double seconds, const EngineCounters& now);
  void write_outlook();
  void stop_when_never_finite();
  void commit();
  std::string commit_fields(double seconds, const EngineCounters& before, const EngineCounters& after) const;
  void keep_algorithms();
  bool commit_is_due() const;
  void evaluate();
  void export_now();
  void remove_torn_exports() const;
  /// What the user is told, in the record too.
  void note(const std::string& text);
  void say(const std::string& text);
  bool last() const { return position_.steps_seen >= options_.steps; }
  std::vector<ParamHyper> hyper(double lr) const;
  std::uint64_t samples_a_step() const;

  const TrainOptions& options_;
  Prepared& prepared_;
  const Inputs& inputs_;
  const RunFolder& folder_;
  Session& session_;
  const Observer& observer_;
  Position position_;
  RunRecord record_;
  Summary summary_;
  std::array<PassPlan, 3> plans_;
  int plan_in_use_ = -1;
  std::optional<Pass> cycle_expects_;  ///< while the cycle's plan is in use: the pass that it is for next
  bool pending_ = false;               ///< updates wait for the next forward
  std::uint64_t committed_steps_ = 0;
  std::size_t algorithms_kept_ = 0;
  std::chrono::steady_clock::time_point last_commit_;
  EngineCounters before_;
  std::uint64_t compute_before_ns_ = 0, update_before_ns_ = 0;
  bool timed_ = false;  ///< the device's spans of this step come from its events
  std::uint64_t clock_error_ns_ = 0;
  int deviating_in_a_row_ = 0;
  Agreement agreed_;
  const std::atomic<int>* interrupt_ = nullptr;
  bool tracing_ = false;
  std::vector<MicroBatch> batches_, evaluation_batches_;
};

}  // namespace transload
