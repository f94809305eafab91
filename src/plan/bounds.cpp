// least_fetch_bytes. Each byte is a page of its own. Between two neighbouring uses of a block lies a gap; a byte kept
// over it is not fetched at the later use. Kept bytes of all gaps that cover a point in time fit in the capacity there.
//
// Not cyclic: keeping most is choosing intervals on a line so that no point carries more than its capacity. Sweep from
// left to right; where the load exceeds the capacity, give up those that end last. Exchange argument: all intervals
// that are alive at that point cover it, so as many must go in any solution; the one that ends last covers, of what
// lies ahead, everything the others cover, so giving it up instead of another never hurts. Fractions do not help: the
// constraint matrix has consecutive ones, so it is totally unimodular.
//
// Cyclic: let f be the least average a period of any schedule that goes on forever. The sweep along the unrolled trace
// is optimal for every horizon at once (it never looks at the horizon). From the state x_p (bytes kept at the end of
// period p) it fetches G over q − p periods and ends in x_q. A schedule from x_p can follow the optimal one from x_q
// and fetch what x_q has more when it is used, so V_M(x_q) ≥ V_M(x_p) − |x_q \ x_p| for the least cost V of any M
// periods. Hence V_M(x_p) = G + V_{M−(q−p)}(x_q) ≥ G − |x_q \ x_p| + V_{M−(q−p)}(x_p), and with M → ∞
//     f ≥ (G − |x_q \ x_p|) / (q − p),
// with equality as soon as the state repeats. The best of several p, q is returned. Pins are ignored and a fetched
// block need not stay for an instant (bypass): both only lower the bound.
#include "plan/bounds.h"

#include <algorithm>
#include <queue>

#include "base/check.h"

namespace transload {

namespace {

constexpr std::uint64_t kNever = UINT64_MAX;

class FetchSweep {
 public:
  explicit FetchSweep(const CacheProblem& problem) : problem_(problem), n_(problem.uses.size()) {
    TRANSLOAD_CHECK(problem.capacity.size() == n_, "{} capacities, {} uses", problem.capacity.size(), n_);
    find_neighbours();
    kept_.assign(problem.block_bytes.size(), 0);
    if (problem.cyclic) keep_everything();
  }

  /// Fetches of the next period.
  std::uint64_t period() {
    std::uint64_t fetched = 0;
    for (std::uint64_t i = 0; i < n_; ++i, ++now_) {
      const CacheProblem::Use& use = problem_.uses[i];
      trim(problem_.capacity[i]);
      std::uint64_t& kept = kept_[use.block];
      if (needed_[i] != 0) fetched += problem_.block_bytes[use.block] - kept;
      load_ -= kept;
      kept = 0;
      if (next_[i] != kNever && saves_[i] != 0) {
        kept = problem_.block_bytes[use.block];
        load_ += kept;
        heap_.emplace(now_ + next_[i], use.block);
      }
      trim(problem_.capacity[i]);
    }
    return fetched;
  }

  const std::vector<std::uint64_t>& kept() const { return kept_; }

 private:
  /// Distance to the next use of the same block, whether it needs content that exists, whether this one's does.
  void find_neighbours() {
    next_.assign(n_, kNever);
    saves_.assign(n_, 0);
    needed_.assign(n_, 0);
    std::vector<std::uint64_t> last(problem_.block_bytes.size(), kNever), first = last;
    for (std::uint64_t i = 0; i < n_; ++i) {
      const std::uint32_t b = problem_.uses[i].block;
      if (last[b] == kNever) {
        first[b] = i;
        needed_[i] = needs_content(problem_.uses[i].kind);  // not cyclic: a cold start
      } else {
        link(last[b], i, i - last[b]);
      }
      last[b] = i;
    }
    for (std::size_t b = 0; problem_.cyclic && b < first.size(); ++b)
      if (first[b] != kNever) link(last[b], first[b], first[b] + n_ - last[b]);
  }
  void link(std::uint64_t from, std::uint64_t to, std::uint64_t distance) {
    next_[from] = distance;
    const bool alive = problem_.uses[from].kind != AccessKind::consume;
    saves_[from] = needed_[to] = alive && needs_content(problem_.uses[to].kind);
  }

  /// The best state to begin with is for free: all that is of use, and the first trim gives up what ends last.
  void keep_everything() {
    for (std::uint64_t i = n_; i-- > 0;) {
      const std::uint32_t b = problem_.uses[i].block;
      if (i + next_[i] < n_ || saves_[i] == 0) continue;
      kept_[b] = problem_.block_bytes[b];
      load_ += kept_[b];
      heap_.emplace(i + next_[i] - n_, b);
    }
  }

  void trim(std::uint64_t capacity) {
    while (load_ > capacity) {
      const std::uint32_t b = heap_.top().second;  // ended gaps are at the bottom: never reached while load is left
      const std::uint64_t gone = std::min(kept_[b], load_ - capacity);
      kept_[b] -= gone;
      load_ -= gone;
      if (kept_[b] == 0) heap_.pop();
    }
  }

  const CacheProblem& problem_;
  const std::uint64_t n_;
  std::vector<std::uint64_t> next_;
  std::vector<char> saves_, needed_;
  std::vector<std::uint64_t> kept_;  // bytes of the block's current gap
  std::priority_queue<std::pair<std::uint64_t, std::uint32_t>> heap_;
  std::uint64_t load_ = 0, now_ = 0;
};

std::uint64_t surplus(const std::vector<std::uint64_t>& x, const std::vector<std::uint64_t>& over) {
  std::uint64_t bytes = 0;
  for (std::size_t b = 0; b < x.size(); ++b) bytes += x[b] > over[b] ? x[b] - over[b] : 0;
  return bytes;
}

/// Periods that are swept: many for small traces, where the state's own period may be long.
std::uint64_t most_periods(std::size_t uses) { return std::clamp<std::uint64_t>(400'000 / (uses + 1), 4, 128); }

}  // namespace

std::uint64_t least_fetch_bytes(const CacheProblem& problem) {
  if (problem.uses.empty()) return 0;
  FetchSweep sweep(problem);
  if (!problem.cyclic) return sweep.period();
  std::vector<std::vector<std::uint64_t>> states;
  std::vector<std::uint64_t> total{0};
  states.push_back(sweep.kept());
  std::uint64_t best = 0;
  const std::uint64_t periods = most_periods(problem.uses.size());
  for (std::size_t q = 1; q <= periods; ++q) {
    total.push_back(total.back() + sweep.period());
    states.push_back(sweep.kept());
    bool repeats = false;
    for (std::size_t p = 0; p < q; ++p) {
      const std::uint64_t gain = surplus(states[q], states[p]), fetched = total[q] - total[p];
      if (fetched >= gain) best = std::max(best, (fetched - gain) / (q - p));
      repeats = repeats || states[q] == states[p];
    }
    if (repeats) break;
  }
  return best;
}

}  // namespace transload
