#include "report/link_times.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace transload::report {

namespace {

/// Length of the union of a lane's spans within the step.
double busy_seconds(const ShownStep& step, int lane) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  const auto wall = static_cast<std::int64_t>(step.line.wall_ns);
  for (const SpanLine& span : step.events.spans)
    if (span.lane == lane)
      spans.emplace_back(std::clamp<std::int64_t>(span.begin_ns, 0, wall),
                         std::clamp<std::int64_t>(span.end_ns, 0, wall));
  std::sort(spans.begin(), spans.end());
  std::int64_t busy = 0, covered = 0;
  for (const auto& [begin, end] : spans) {
    busy += std::max<std::int64_t>(0, end - std::max(begin, covered));
    covered = std::max(covered, end);
  }
  return static_cast<double>(busy) * 1e-9;
}

}  // namespace

LinkTimes link_times(const ShownStep& step, const Attribution& attribution) {
  LinkTimes times;
  for (std::size_t i = 0; i < kLinks; ++i) {
    times.busy_s[i] = busy_seconds(step, static_cast<int>(i));
    const auto part = static_cast<Part>(static_cast<std::size_t>(Part::nvme_read) + i);
    times.waited_s[i] = static_cast<double>(attribution.of(part)) * 1e-9;
    times.bytes[i] = static_cast<double>(step.line.links[i].bytes);
  }
  return times;
}

double step_after(double step_s, const LinkTimes& links, const ChangedStep& change) {
  double after = step_s + change.more_compute_s;
  for (std::size_t i = 0; i < kLinks; ++i) {
    if (links.bytes[i] <= 0) continue;
    const double hidden = std::max(0.0, links.busy_s[i] - links.waited_s[i] + std::min(0.0, change.more_compute_s));
    const double busy = links.busy_s[i] * change.bytes[i] / links.bytes[i];
    after += std::max(0.0, busy - hidden) - links.waited_s[i];
  }
  return after;
}

}  // namespace transload::report
