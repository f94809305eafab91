// How long each link was at work in a step, and how much of that the step waited for; from these, what a change of
// bytes and computation does to the step's time.
//
// What a link does while a processor works is hidden, and as much stays hidden when its bytes change; the rest is
// exposed, and the step's wait for the link goes with it. (Where two links are at work in a wait, each has its part of
// it.) Less computation hides less; that more of it would hide more is not counted on.
#pragma once

#include <array>

#include "report/attribution.h"

namespace transload::report {

struct LinkTimes {
  std::array<double, kLinks> busy_s{}, hidden_s{};
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
