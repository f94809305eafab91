// What one record comes to: its last header, sums over all its steps, medians of the steady state of its last process,
// and one step with all its events. Bounded, whatever the record's length. Everything that a report prints or draws is
// computed from this.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/record_reader.h"
#include "report/step_series.h"

namespace transload::report {

struct Totals {
  std::uint64_t steps = 0, skipped = 0, deviated = 0, deviations = 0;
  std::uint64_t hits = 0, late = 0, demand = 0, wasted = 0;
  std::uint64_t wall_ns = 0, wait_ns = 0, tokens = 0, peak_resident_bytes = 0;
  std::array<LinkUse, kLinks> links{};
  std::uint64_t commits = 0, commit_bytes = 0;
  double commit_s = 0;
};

/// Medians of the steady state (of all steps while there is none), over the last steps of the last process.
struct Medians {
  std::uint64_t of_steps = 0;
  bool steady = false;
  double wall_s = 0, compute_s = 0, update_s = 0, wait_s = 0, tokens = 0;
  std::array<double, kLinks> link_bytes{};
};

struct ShownStep {
  StepLine line;
  StepEvents events;
  bool steady = false;
};

struct Evaluation {
  std::uint64_t step = 0;
  double loss = 0;
};

struct RunModel {
  static constexpr std::size_t kMostNotes = 200, kMostEvaluations = 1000;
  std::string path;
  int rank = 0;
  Header header;  ///< of the last process
  ReadingFacts facts;
  Totals totals;
  Medians medians;
  StepSeries series;
  std::uint64_t first_step = 0, last_step = 0;
  std::optional<double> first_loss, last_loss;
  std::optional<ShownStep> shown;  ///< of those with events, a steady one near the median
  std::optional<Outlook> outlook;  ///< the last process's last
  std::vector<Evaluation> evaluations;
  std::vector<std::string> notes;
  std::uint64_t more_notes = 0;
};

/// IoError where the record cannot be read.
RunModel read_model(const std::string& path, int rank);

}  // namespace transload::report
