// Three passes.
//  1. Sweeps along several periods, as a cache would go: a gap joins at its start; where the joined ones exceed the
//     room, those leave whose next use is farthest, distance weighed by price (a heap a price class; within a class the
//     order never changes, so the comparison is between the tops alone). With one price this is the exact optimum of
//     the unrolled trace up to whole blocks, see bounds.cpp.
//  2. The decisions of the last period, closed to a circle: one more sweep over it, where only leaving is possible.
//  3. What room the whole blocks left is filled: dropped gaps, those that pay most per position first, join where they
//     fit (a segment tree of the least room left).
#include "plan/choose_gaps.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "plan/room_tree.h"

namespace transload {

namespace {

constexpr int kPeriods = 3;  // the last of them decides; one more lets its gaps end

enum PriceClass : std::uint8_t { kClean = 0, kDirty = 1, kWriteOnly = 2, kWorthless = 3 };

struct Joined {
  std::uint64_t to;
  std::uint32_t gap;
  std::uint32_t period;
  bool operator<(const Joined& o) const { return to != o.to ? to < o.to : gap > o.gap; }
};

class Sweep {
 public:
  Sweep(const TierProblem& problem, const GapProblem& gaps, double write_weight)
      : problem_(problem), gaps_(gaps), n_(problem.uses.size()), price_{1, 1 + write_weight, write_weight} {
    index_starts();
    keep_.assign(gaps_.gaps.size(), 0);
    unwritten_.assign(problem_.frames.size(), 0);
    for (const TierUse& use : problem_.uses)
      if (makes_version(use.op)) unwritten_[use.block] = 1;
  }

  std::vector<char> run() {
    ending_.assign(2 * n_ + 1, 0);
    for (std::uint32_t period = 0; period <= kPeriods; ++period)
      for (std::uint32_t p = 0; p < n_; ++p) step(period, p, /*closing=*/false);
    close_circle();
    return std::move(keep_);
  }

 private:
  void index_starts() {
    start_.assign(n_ + 1, 0);
    for (const Gap& g : gaps_.gaps) ++start_[g.from + 1];
    for (std::size_t p = 0; p < n_; ++p) start_[p + 1] += start_[p];
    by_start_.resize(gaps_.gaps.size());
    std::vector<std::uint32_t> next(start_.begin(), start_.end() - 1);
    for (std::uint32_t g = 0; g < gaps_.gaps.size(); ++g) by_start_[next[gaps_.gaps[g].from]++] = g;
  }

  PriceClass price_class(const Gap& gap) const {
    if (!gap.alive || gap.empty()) return kWorthless;
    const bool dirty = unwritten_[gap.block] != 0 && gap.spared_write;
    if (gap.fetch) return dirty ? kDirty : kClean;
    return dirty ? kWriteOnly : kWorthless;
  }

  /// The state before position p's gaps join: what ends here leaves the load, a new version is dirty.
  void step(std::uint32_t period, std::uint32_t p, bool closing) {
    const std::uint64_t now = std::uint64_t{period} * n_ + p;
    load_ -= ending_[now % ending_.size()];
    ending_[now % ending_.size()] = 0;
    const TierUse& use = problem_.uses[p];
    if (makes_version(use.op))
      unwritten_[use.block] = 1;
    else if (ends_copy(use.op))
      unwritten_[use.block] = 0;
    for (std::uint32_t i = start_[p]; i < start_[p + 1]; ++i) {
      const std::uint32_t g = by_start_[i];
      const Gap& gap = gaps_.gaps[g];
      if (closing && keep_[g] == 0) continue;
      const PriceClass c = price_class(gap);
      if (c == kWorthless && !closing) {
        if (period < kPeriods) keep_[g] = 0;
        if (gap.alive && !gap.empty()) unwritten_[gap.block] = 0;
        continue;
      }
      join(c == kWorthless ? kWriteOnly : c, {now + (gap.to - gap.from), g, period});
    }
    while (load_ > gaps_.room[p]) leave(now);
  }

  void join(PriceClass c, const Joined& j) {
    const std::uint64_t frames = problem_.frames[gaps_.gaps[j.gap].block];
    heap_[c].push(j);
    load_ += frames;
    ending_[j.to % ending_.size()] += frames;
    if (j.period < kPeriods) keep_[j.gap] = 1;
  }

  void leave(std::uint64_t now) {
    int worst = -1;
    double most = -1;
    for (int c = 0; c < 3; ++c) {
      if (heap_[c].empty() || heap_[c].top().to <= now) continue;
      const auto distance = static_cast<double>(heap_[c].top().to - now);
      const double badness = price_[c] > 0 ? distance / price_[c] : 1e300;
      if (badness > most) {
        most = badness;
        worst = c;
      }
    }
    const Joined j = heap_[worst].top();
    heap_[worst].pop();
    const Gap& gap = gaps_.gaps[j.gap];
    load_ -= problem_.frames[gap.block];
    ending_[j.to % ending_.size()] -= problem_.frames[gap.block];
    unwritten_[gap.block] = 0;
    // Gaps of the last whole period decide; the period after it only lets them end.
    if (j.period < kPeriods) keep_[j.gap] = 0;
  }

  void close_circle() {
    for (auto& heap : heap_) heap = {};
    std::fill(ending_.begin(), ending_.end(), 0);
    load_ = 0;
    const std::uint32_t period = 1;  // kept gaps that cross the period's end are there when it begins
    for (std::uint32_t g = 0; g < gaps_.gaps.size(); ++g)
      if (keep_[g] != 0 && gaps_.gaps[g].to > n_) join(kClean, {gaps_.gaps[g].to, g, 0});
    for (std::uint32_t p = 0; p < n_; ++p) step(period, p, /*closing=*/true);
  }

  const TierProblem& problem_;
  const GapProblem& gaps_;
  const std::uint64_t n_;
  const double price_[3];
  std::vector<std::uint32_t> start_, by_start_;  // gaps by first position
  std::vector<char> keep_;
  std::vector<char> unwritten_;  // by block: the version is here alone
  std::priority_queue<Joined> heap_[3];
  std::vector<std::uint64_t> ending_;  // frames of joined gaps by (absolute position) modulo two periods
  std::uint64_t load_ = 0;
};

void fill_room(const TierProblem& problem, const GapProblem& gaps, double write_weight, std::vector<char>& keep) {
  RoomTree room(gaps.room);
  std::vector<std::uint32_t> dropped;
  for (std::uint32_t g = 0; g < gaps.gaps.size(); ++g) {
    const Gap& gap = gaps.gaps[g];
    if (!gap.alive) continue;
    if (keep[g] != 0)
      room.take(gap.from, gap.to, problem.frames[gap.block]);
    else if (!gap.empty() && (gap.fetch || gap.spared_write))
      dropped.push_back(g);
  }
  const auto pay = [&](std::uint32_t g) {
    const Gap& gap = gaps.gaps[g];
    const double price = (gap.fetch ? 1.0 : 0.0) + (gap.spared_write ? write_weight / 2 : 0.0);
    return price / static_cast<double>(gap.to - gap.from);
  };
  std::sort(dropped.begin(), dropped.end(), [&](std::uint32_t a, std::uint32_t b) {
    const double x = pay(a), y = pay(b);
    return x != y ? x > y : a < b;
  });
  for (const std::uint32_t g : dropped) {
    const Gap& gap = gaps.gaps[g];
    const std::uint64_t frames = problem.frames[gap.block];
    if (room.least(gap.from, gap.to) < static_cast<std::int64_t>(frames)) continue;
    room.take(gap.from, gap.to, frames);
    keep[g] = 1;
  }
}

constexpr char kFree = 2;

/// What of the gaps over the period's end is given: 1 stays, 0 leaves. A copy for which there is no room leaves.
std::vector<char> given_gaps(const TierProblem& problem, const GapProblem& gaps) {
  std::vector<char> given(gaps.gaps.size(), kFree);
  if (problem.held == nullptr) return given;
  RoomTree room(gaps.room);
  for (std::size_t g = 0; g < given.size(); ++g) {
    const Gap& gap = gaps.gaps[g];
    if (!gap.alive || gap.to < problem.uses.size()) continue;
    const std::uint64_t frames = problem.frames[gap.block];
    const bool stays = (*problem.held)[gap.block] && room.least(gap.from, gap.to) >= static_cast<std::int64_t>(frames);
    if (stays) room.take(gap.from, gap.to, frames);
    given[g] = stays ? 1 : 0;
  }
  return given;
}

/// The choice that is left: given gaps are none, and those that stay have their room.
GapProblem without_given(const TierProblem& problem, const GapProblem& gaps, const std::vector<char>& given) {
  GapProblem left = gaps;
  const std::size_t n = left.room.size();
  std::vector<std::uint64_t> joins(n + 1, 0), leaves(n + 1, 0);  // frames of those that stay; all of them cross the end
  std::uint64_t taken = 0;
  for (std::size_t g = 0; g < given.size(); ++g) {
    if (given[g] == kFree) continue;
    Gap& gap = left.gaps[g];
    if (given[g] == 1) {
      const std::uint64_t frames = problem.frames[gap.block];
      taken += frames;
      leaves[gap.to - n] += frames;
      joins[gap.from] += frames;
    }
    gap.to = gap.from;
  }
  for (std::size_t p = 0; p < n; ++p) {
    taken += joins[p];
    taken -= leaves[p];
    left.room[p] -= taken;
  }
  return left;
}

std::vector<char> choose_freely(const TierProblem& problem, const GapProblem& gaps, double write_weight) {
  std::vector<char> keep = Sweep(problem, gaps, write_weight).run();
  for (std::size_t g = 0; g < gaps.gaps.size(); ++g)
    if (gaps.gaps[g].alive && gaps.gaps[g].empty()) keep[g] = 1;
  fill_room(problem, gaps, write_weight, keep);
  return keep;
}

}  // namespace

std::vector<char> choose_gaps(const TierProblem& problem, const GapProblem& gaps, double write_weight) {
  std::vector<char> keep;
  if (!problem.may_evict) {
    for (const Gap& gap : gaps.gaps) keep.push_back(gap.alive ? 1 : 0);
    return keep;
  }
  if (problem.held == nullptr) return choose_freely(problem, gaps, write_weight);
  const std::vector<char> given = given_gaps(problem, gaps);
  keep = choose_freely(problem, without_given(problem, gaps, given), write_weight);
  for (std::size_t g = 0; g < keep.size(); ++g)
    if (given[g] != kFree) keep[g] = given[g];
  return keep;
}

}  // namespace transload
