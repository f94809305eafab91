#include "plan/gaps.h"

#include <algorithm>

#include "base/check.h"

namespace transload {

namespace {

/// Uses by block, counting sort: positions stay ascending within a block.
void index_uses(const TierProblem& problem, GapProblem& out) {
  out.first_use.assign(problem.frames.size() + 1, 0);
  for (const TierUse& use : problem.uses)
    if (use.op != TierOp::none) ++out.first_use[use.block + 1];
  for (std::size_t b = 1; b < out.first_use.size(); ++b) out.first_use[b] += out.first_use[b - 1];
  out.use_positions.resize(out.first_use.back());
  std::vector<std::uint32_t> next(out.first_use.begin(), out.first_use.end() - 1);
  for (std::uint32_t p = 0; p < problem.uses.size(); ++p)
    if (problem.uses[p].op != TierOp::none) out.use_positions[next[problem.uses[p].block]++] = p;
}

/// Adds frames over [from, to) of the circle to a difference array (to may lie beyond the end).
void add_range(std::vector<std::int64_t>& change, std::uint64_t from, std::uint64_t to, std::uint64_t frames) {
  const std::uint64_t n = change.size() - 1;
  const auto f = static_cast<std::int64_t>(frames);
  if (from >= n) {
    from -= n;
    to -= n;
  }
  change[from] += f;
  if (to <= n) {
    change[to] -= f;
    return;
  }
  change[n] -= f;
  change[0] += f;
  change[to - n] -= f;
}

class BlockGaps {
 public:
  BlockGaps(const TierProblem& problem, GapProblem& out, std::vector<std::int64_t>& pinned)
      : problem_(problem), out_(out), pinned_(pinned), n_(static_cast<std::uint32_t>(problem.uses.size())) {}

  void add(std::uint32_t block) {
    const std::uint32_t begin = out_.first_use[block], end = out_.first_use[block + 1];
    std::uint32_t first = begin;  // flushes are not uses: they neither need nor end a copy
    while (first < end && op_at(first) == TierOp::flush) ++first;
    if (first == end) return;
    bool flushed = false;
    std::uint32_t release = 0, releasing = 0, previous = UINT32_MAX;
    for (std::uint32_t i = first; i < end; ++i) {
      const std::uint32_t position = out_.use_positions[i];
      const TierUse& use = problem_.uses[position];
      if (use.op == TierOp::flush) {
        flushed = true;
        continue;
      }
      if (previous != UINT32_MAX) add_gap(block, previous, releasing, release, position, flushed);
      const std::uint32_t pinned_from = previous == UINT32_MAX ? position : std::max(position, release);
      if (resides(use.op) && use.release > pinned_from)
        add_range(pinned_, pinned_from, use.release, problem_.frames[block]);
      if (use.release >= release) {
        release = use.release;
        releasing = position;
      }
      previous = position;
      flushed = false;
    }
    add_gap(block, previous, releasing, release, out_.use_positions[first] + n_, flushed || first != begin);
  }

 private:
  TierOp op_at(std::uint32_t index) const { return problem_.uses[out_.use_positions[index]].op; }

  void add_gap(std::uint32_t block, std::uint32_t last, std::uint32_t releasing, std::uint32_t from, std::uint32_t to,
               bool flushed) {
    const TierOp before = problem_.uses[last].op;
    Gap gap;
    gap.block = block;
    gap.last_use = releasing;
    gap.from = std::min(from, to);
    gap.to = to;
    gap.next_use = to >= n_ ? to - n_ : to;
    if (gap.from >= n_) {
      gap.from -= n_;
      gap.to -= n_;
    }
    const TierOp after = problem_.uses[gap.next_use].op;
    gap.alive = leaves_copy(before);
    gap.fetch = needs_content(after) && before != TierOp::consume;
    gap.flushed = flushed;
    const bool lives_above = problem_.uses[last].above && problem_.uses[gap.next_use].above && after == TierOp::kill;
    gap.wanted_below = flushed || !lives_above;
    gap.spared_write = !flushed && !lives_above && after != TierOp::take;
    if (gap.alive && !problem_.may_evict) add_range(pinned_, gap.from, gap.to, problem_.frames[block]);
    out_.gaps.push_back(gap);
  }

  const TierProblem& problem_;
  GapProblem& out_;
  std::vector<std::int64_t>& pinned_;
  const std::uint32_t n_;
};

}  // namespace

GapProblem find_gaps(const TierProblem& problem) {
  GapProblem out;
  index_uses(problem, out);
  const std::size_t n = problem.uses.size();
  std::vector<std::int64_t> change(n + 1, 0);
  BlockGaps builder(problem, out, change);
  out.gaps.reserve(out.use_positions.size());
  for (std::uint32_t b = 0; b < problem.frames.size(); ++b) builder.add(b);

  out.pinned.resize(n);
  out.room.resize(n);
  std::int64_t now = static_cast<std::int64_t>(problem.constant), worst = INT64_MAX;
  for (std::uint32_t p = 0; p < n; ++p) {
    now += change[p];
    TRANSLOAD_CHECK(now >= 0, "{} pinned frames at position {}", now, p);
    out.pinned[p] = static_cast<std::uint64_t>(now);
    const std::int64_t free = static_cast<std::int64_t>(problem.usable[p]) - now;
    if (free < worst) {
      worst = free;
      out.worst = p;
    }
    if (free < 0) out.feasible = false;
    // Where pins need it, the room for transfers shrinks: the plan stays feasible at the least budget.
    const std::int64_t left = free - static_cast<std::int64_t>(problem.in_flight);
    out.room[p] = static_cast<std::uint64_t>(std::max<std::int64_t>(left, 0));
  }
  return out;
}

}  // namespace transload
