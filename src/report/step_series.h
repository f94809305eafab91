// The steps of a run from first to last in at most kMostPoints points: when there are more, neighbours are joined, so a
// run of a million steps is drawn from as much memory as one of a thousand.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "report/events.h"

namespace transload::report {

class StepSeries {
 public:
  static constexpr std::size_t kMostPoints = 512;

  struct Point {
    std::uint64_t first_step = 0, last_step = 0, steps = 0, losses = 0;
    double sum_s = 0, least_s = 0, most_s = 0, sum_loss = 0;
    double mean_s() const { return steps == 0 ? 0 : sum_s / static_cast<double>(steps); }
    std::optional<double> loss() const {
      return losses == 0 ? std::nullopt : std::optional(sum_loss / static_cast<double>(losses));
    }
  };

  void add(const StepLine& step);
  const std::vector<Point>& points() const { return points_; }

 private:
  void join_neighbours();
  std::vector<Point> points_;
  std::uint64_t steps_a_point_ = 1;
};

}  // namespace transload::report
