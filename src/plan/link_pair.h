// Two directions of one link as fluids: each in order at its rate; while both run, their sum stays within the duplex
// rate. Rates of 0 are unknown: such a direction takes no time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>

namespace transload {

class LinkPair {
 public:
  LinkPair(double read_rate, double write_rate, double duplex) : rate_{read_rate, write_rate}, duplex_(duplex) {}

  void read(double bytes) { queue_[0].push_back(bytes); }
  void write(double bytes) { queue_[1].push_back(bytes); }

  /// Lets time pass until `until`.
  void advance(double until) {
    while (now_ < until && step(until)) {
    }
    now_ = std::max(now_, until);
  }

  /// Lets time pass until `count` reads have ended in all; the time when they had, not before `now`.
  double finish_reads(std::uint64_t count, double now) { return finish(0, count, now); }
  double finish_writes(std::uint64_t count, double now) { return finish(1, count, now); }

 private:
  double finish(int direction, std::uint64_t count, double now) {
    advance(now);
    while (done_[direction] < count && step(std::numeric_limits<double>::infinity())) {
    }
    return now_;
  }

  /// On to the next end of a transfer, at most to `until`; false when nothing is under way.
  bool step(double until) {
    for (int d = 0; d < 2; ++d) {
      while (!queue_[d].empty() && (rate_[d] <= 0 || queue_[d].front() <= kDone)) {
        queue_[d].pop_front();
        ++done_[d];
      }
    }
    const bool runs[2] = {!queue_[0].empty(), !queue_[1].empty()};
    if (!runs[0] && !runs[1]) return false;
    double share = 1;
    if (runs[0] && runs[1] && duplex_ > 0) share = std::min(1.0, duplex_ / (rate_[0] + rate_[1]));
    double next = until;
    for (int d = 0; d < 2; ++d)
      if (runs[d]) next = std::min(next, now_ + queue_[d].front() / (rate_[d] * share));
    for (int d = 0; d < 2; ++d)
      if (runs[d]) queue_[d].front() -= (next - now_) * rate_[d] * share;
    now_ = next;
    return true;
  }

  static constexpr double kDone = 1e-3;  // bytes; what rounding leaves of a transfer

  const double rate_[2];
  const double duplex_;
  std::deque<double> queue_[2];
  std::uint64_t done_[2] = {0, 0};
  double now_ = 0;
};

}  // namespace transload
