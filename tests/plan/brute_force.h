// Exhaustive search: the least average cost a period of a cache that whole blocks enter and leave, over all schedules.
// States are what each block is in the cache (absent, clean, dirty); a period is a min-plus matrix over states; the
// steady state is its least mean cycle (Karp). Prices are by block.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/bounds.h"

namespace transload::test {

class BruteForce {
 public:
  BruteForce(const CacheProblem& problem, double fetch_price, double write_price)
      : problem_(problem), fetch_(fetch_price), write_(write_price), blocks_(problem.block_bytes.size()) {
    states_ = 1;
    for (std::size_t b = 0; b < blocks_; ++b) states_ *= 3;
    alive_.assign(blocks_, true);
    for (const CacheProblem::Use& use : problem.uses) alive_[use.block] = use.kind != AccessKind::consume;
  }

  double steady_state() const {
    std::vector<std::vector<double>> cost(states_);
    for (std::size_t s = 0; s < states_; ++s) cost[s] = period_from(s);
    return least_mean_cycle(cost);
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  enum : std::size_t { kAbsent = 0, kClean = 1, kDirty = 2 };

  std::size_t digit(std::size_t state, std::size_t b) const { return state / power(b) % 3; }
  std::size_t with(std::size_t state, std::size_t b, std::size_t d) const {
    return state + (d - digit(state, b)) * power(b);
  }
  std::size_t power(std::size_t b) const {
    std::size_t p = 1;
    for (; b > 0; --b) p *= 3;
    return p;
  }
  std::uint64_t held(std::size_t state) const {
    std::uint64_t bytes = 0;
    for (std::size_t b = 0; b < blocks_; ++b) bytes += digit(state, b) != kAbsent ? problem_.block_bytes[b] : 0;
    return bytes;
  }
  double bytes(std::size_t b) const { return static_cast<double>(problem_.block_bytes[b]); }

  /// Any blocks may leave; what is left must fit.
  void let_leave(std::vector<double>& cost, const std::vector<char>& alive, std::uint64_t capacity) const {
    for (std::size_t b = 0; b < blocks_; ++b) {
      std::vector<double> next = cost;
      for (std::size_t s = 0; s < states_; ++s) {
        if (cost[s] == kInfinity || digit(s, b) == kAbsent) continue;
        const double price = digit(s, b) == kDirty && alive[b] != 0 ? write_ * bytes(b) : 0;
        double& to = next[with(s, b, kAbsent)];
        to = std::min(to, cost[s] + price);
      }
      cost = next;
    }
    for (std::size_t s = 0; s < states_; ++s)
      if (held(s) > capacity) cost[s] = kInfinity;
  }

  std::vector<double> period_from(std::size_t start) const {
    std::vector<double> cost(states_, kInfinity);
    cost[start] = 0;
    std::vector<char> alive(alive_.begin(), alive_.end());
    for (std::size_t t = 0; t < problem_.uses.size(); ++t) {
      const CacheProblem::Use& use = problem_.uses[t];
      let_leave(cost, alive, problem_.capacity[t]);
      std::vector<double> next(states_, kInfinity);
      for (std::size_t s = 0; s < states_; ++s) {
        if (cost[s] == kInfinity) continue;
        const std::size_t was = digit(s, use.block);
        const bool fetched = was == kAbsent && needs_content(use.kind) && alive[use.block] != 0;
        const std::size_t is = use.kind == AccessKind::consume ? kAbsent
                               : makes_version(use.kind)       ? kDirty
                               : was == kDirty                 ? kDirty
                                                               : kClean;
        double& to = next[with(s, use.block, is)];
        to = std::min(to, cost[s] + (fetched ? fetch_ * bytes(use.block) : 0));
      }
      cost = next;
      alive[use.block] = use.kind != AccessKind::consume;
      let_leave(cost, alive, problem_.capacity[t]);
    }
    return cost;
  }

  double least_mean_cycle(const std::vector<std::vector<double>>& cost) const {
    std::vector<std::vector<double>> walk(states_ + 1, std::vector<double>(states_, kInfinity));
    for (double& d : walk[0]) d = 0;  // from anywhere
    for (std::size_t k = 1; k <= states_; ++k)
      for (std::size_t from = 0; from < states_; ++from)
        if (walk[k - 1][from] < kInfinity)
          for (std::size_t to = 0; to < states_; ++to)
            walk[k][to] = std::min(walk[k][to], walk[k - 1][from] + cost[from][to]);
    double best = kInfinity;
    for (std::size_t s = 0; s < states_; ++s) {
      if (walk[states_][s] == kInfinity) continue;
      double worst = -kInfinity;
      for (std::size_t k = 0; k < states_; ++k)
        if (walk[k][s] < kInfinity)
          worst = std::max(worst, (walk[states_][s] - walk[k][s]) / static_cast<double>(states_ - k));
      best = std::min(best, worst);
    }
    return best;
  }

  const CacheProblem& problem_;
  const double fetch_, write_;
  const std::size_t blocks_;
  std::size_t states_;
  std::vector<bool> alive_;
};

}  // namespace transload::test
