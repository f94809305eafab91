#include "report/step_series.h"

#include <algorithm>

namespace transload::report {

namespace {

void join(StepSeries::Point& into, const StepSeries::Point& next) {
  into.last_step = next.last_step;
  into.steps += next.steps;
  into.losses += next.losses;
  into.sum_s += next.sum_s;
  into.sum_loss += next.sum_loss;
  into.least_s = std::min(into.least_s, next.least_s);
  into.most_s = std::max(into.most_s, next.most_s);
}

}  // namespace

void StepSeries::add(const StepLine& step) {
  const double seconds = static_cast<double>(step.wall_ns) * 1e-9;
  const Point point{.first_step = step.step,
                    .last_step = step.step,
                    .steps = 1,
                    .losses = step.loss ? 1u : 0u,
                    .sum_s = seconds,
                    .least_s = seconds,
                    .most_s = seconds,
                    .sum_loss = step.loss.value_or(0)};
  if (!points_.empty() && points_.back().steps < steps_a_point_) return join(points_.back(), point);
  if (points_.size() == kMostPoints) join_neighbours();
  points_.push_back(point);
}

void StepSeries::join_neighbours() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) {
    Point point = points_[i];
    if (i + 1 < points_.size()) join(point, points_[i + 1]);
    points_[kept++] = point;
  }
  points_.resize(kept);
  steps_a_point_ *= 2;
}

}  // namespace transload::report
