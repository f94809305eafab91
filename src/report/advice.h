// What holds a step back, and what one change of a setting would save: the sentence that a report opens with, and
// further ones. Computed from the record alone; what it does not hold is not guessed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/link_times.h"
#include "report/run_model.h"

namespace transload::report {

/// A change of one setting, and the step's time after it.
struct Remedy {
  WhatIf what;
  double step_s = 0;   ///< after it
  double saves_s = 0;  ///< a step; for more micro-batches: for as many tokens as a step has now
  std::string sentence() const;
};

struct Advice {
  std::string sentence;
  Part cause = Part::between;
  double share = 0, step_s = 0;
  std::optional<Remedy> remedy;
  std::vector<std::string> more;
};

Advice advise(const RunModel& model);

/// What each change of the record's outlook would do; for the table of them.
std::vector<Remedy> remedies(const RunModel& model);

}  // namespace transload::report
