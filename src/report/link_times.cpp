#include "report/link_times.h"

#include <algorithm>

namespace transload::report {

LinkTimes link_times(const ShownStep& step, const Attribution& attribution) {
  LinkTimes times;
  for (std::size_t i = 0; i < kLinks; ++i) {
    const auto part = static_cast<Part>(static_cast<std::size_t>(Part::nvme_read) + i);
    times.busy_s[i] = static_cast<double>(attribution.busy_ns[i]) * 1e-9;
    times.hidden_s[i] = static_cast<double>(attribution.hidden_ns[i]) * 1e-9;
    times.waited_s[i] = static_cast<double>(attribution.of(part)) * 1e-9;
    times.bytes[i] = static_cast<double>(step.line.links[i].bytes);
  }
  return times;
}

double step_after(double step_s, const LinkTimes& links, const ChangedStep& change) {
  double after = step_s + change.more_compute_s;
  for (std::size_t i = 0; i < kLinks; ++i) {
    if (links.bytes[i] <= 0) continue;
    const double hidden = std::max(0.0, links.hidden_s[i] + std::min(0.0, change.more_compute_s));
    const double busy = links.busy_s[i] * change.bytes[i] / links.bytes[i];
    const double exposed = links.busy_s[i] - links.hidden_s[i], still = std::max(0.0, busy - hidden);
    after += exposed > 0 ? links.waited_s[i] * (still / exposed - 1) : still;
  }
  return after;
}

}  // namespace transload::report
