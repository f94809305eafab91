// How long each link was at work in a step, and how much of that the step waited for; from these, what a change of
// bytes and computation does to the step's time.
//
// A link's time beyond what the step waited for was hidden behind other work, and as much stays hidden when its bytes
// change: halving the bytes of a link that is waited for half of its time leaves no wait.
#pragma once

#include <array>
#include <cstdint>

#include "report/attribution.h"

namespace transload::report {

struct LinkTimes {
  std::array<double, kLinks> busy_s{};    ///< the union of its transfers
  std::array<double, kLinks> waited_s{};  ///< as attribution says
  std::array<double, kLinks> bytes{};
};
LinkTimes link_times(const ShownStep& step, const Attribution& attribution);

struct ChangedStep {
  double more_compute_s = 0;  ///< negative: less
  std::array<double, kLinks> bytes{};
};
/// The step's seconds after the change.
double step_after(double step_s, const LinkTimes& links, const ChangedStep& change);

}  // namespace transload::report
