// least_cost: min-cost flow on a circle.
//
// Model. Each use t is two points in time: the moment (what is kept up to t is there, what t fetches passes by) and the
// stretch after it; both have capacity[t]. A gap from use i to use j covers the stretch of i up to the moment of j.
// Flow along the circle is room: at each point exactly `capacity` flows, either through the gap arcs over it (bytes
// kept; cost: minus what keeping spares) or along the line (room not used).
//
// Writes. A byte's version is written if the byte leaves over any of the version's gaps: written = max(1 − x_g) over
// its gaps g, which is at least Σ λ_g (1 − x_g) for any λ ≥ 0 with sum 1. So charging the share λ_g of the price to
// each gap only lowers the optimum. Three λ are tried (first gap, longest gap, equal shares), the best bound counts.
// Where every version has one gap this is exact.
//
// Circle. Flow conservation fixes the flow at all points once it is fixed at one; that one constraint is taken into the
// cost with a multiplier (a price on every arc over the period's end). Any multiplier gives a bound, the best one the
// optimum (strong duality), and the bound is concave in it: ternary search.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "plan/bounds.h"

namespace transload {

namespace {

struct Arc {
  std::size_t from, to;
  double capacity, flow, cost;
  bool crosses_end;
};

class Circle {
 public:
  Circle(const CacheProblem& problem, double fetch_price, double write_price, int sharing)
      : problem_(problem), n_(problem.uses.size()) {
    TRANSLOAD_CHECK(problem.capacity.size() == n_, "{} capacities, {} uses", problem.capacity.size(), n_);
    const std::size_t points = 2 * n_;
    for (std::size_t p = 0; p < points; ++p) {
      const auto capacity = static_cast<double>(problem.capacity[p / 2]);
      const bool last = p + 1 == points;
      arcs_.push_back({p, last && problem.cyclic ? 0 : p + 1, capacity, capacity, 0, last && problem.cyclic});
    }
    nodes_ = points + (problem.cyclic ? 0 : 1);
    for (std::uint32_t b = 0; b < problem.block_bytes.size(); ++b) add_block(b, fetch_price, write_price, sharing);
  }

  /// Least cost with the multiplier.
  double bound(double multiplier) {
    for (std::size_t p = 0; p < arcs_.size(); ++p) arcs_[p].flow = p < 2 * n_ ? arcs_[p].capacity : 0;
    while (cancel_cycle(multiplier)) {
    }
    double cost = everything_moves_;
    for (const Arc& a : arcs_) cost += a.flow * (a.cost + (a.crosses_end ? multiplier : 0));
    return cost - multiplier * (problem_.cyclic ? static_cast<double>(problem_.capacity[n_ - 1]) : 0);
  }

 private:
  struct Gap {
    std::size_t from, to;  // uses; to may be n and more
    double saved;          // a byte kept
  };

  void add_block(std::uint32_t block, double fetch_price, double write_price, int sharing) {
    std::vector<std::size_t> uses;
    for (std::size_t t = 0; t < n_; ++t)
      if (problem_.uses[t].block == block) uses.push_back(t);
    if (uses.empty()) return;
    const auto bytes = static_cast<double>(problem_.block_bytes[block]);
    if (!problem_.cyclic && needs_content(problem_.uses[uses[0]].kind)) everything_moves_ += fetch_price * bytes;

    std::size_t first = 0;  // begin with a version, so that none is cut in two
    while (problem_.cyclic && first < uses.size() && !makes_version(problem_.uses[uses[first]].kind)) ++first;
    const bool versioned = first < uses.size();
    if (!versioned) first = 0;
    std::vector<Gap> version;
    bool dirty = false;
    const std::size_t gaps = uses.size() - (problem_.cyclic ? 0 : 1);
    for (std::size_t i = 0; i < gaps; ++i) {
      const std::size_t k = (first + i) % uses.size();
      const AccessKind kind = problem_.uses[uses[k]].kind;
      if (makes_version(kind)) {
        share_write(version, dirty, bytes, write_price, sharing);
        dirty = true;
      }
      const bool wraps = k + 1 == uses.size();
      const std::size_t to = wraps ? uses[0] + n_ : uses[k + 1];
      if (kind == AccessKind::consume) {
        share_write(version, dirty, bytes, write_price, sharing);
        dirty = false;
        continue;
      }
      const bool needed = needs_content(problem_.uses[to % n_].kind);
      everything_moves_ += needed ? fetch_price * bytes : 0;
      version.push_back({uses[k], to, needed ? fetch_price : 0});
    }
    share_write(version, dirty, bytes, write_price, sharing);
  }

  /// The version's gaps are known: its write is shared among them, and they become arcs.
  void share_write(std::vector<Gap>& version, bool dirty, double bytes, double write_price, int sharing) {
    if (dirty && !version.empty()) {
      everything_moves_ += write_price * bytes;
      const auto longest = std::max_element(version.begin(), version.end(),
                                            [](const Gap& a, const Gap& b) { return a.to - a.from < b.to - b.from; });
      if (sharing == 0) version.front().saved += write_price;
      if (sharing == 1) longest->saved += write_price;
      if (sharing == 2)
        for (Gap& g : version) g.saved += write_price / static_cast<double>(version.size());
    }
    for (const Gap& g : version) {
      const bool crosses = g.to >= n_;
      const std::size_t end = problem_.cyclic ? (2 * g.to + 1) % (2 * n_) : 2 * g.to + 1;
      arcs_.push_back({2 * g.from + 1, end, bytes, 0, -g.saved, crosses});
    }
    version.clear();
  }

  /// Finds a cycle of negative cost in the residual graph (Bellman-Ford) and fills it; false when there is none.
  bool cancel_cycle(double multiplier) {
    constexpr double kEpsilon = 1e-9;
    std::vector<double> distance(nodes_, 0);
    std::vector<int> via(nodes_, 0);  // ±(arc + 1): forward or backward
    std::size_t moved = nodes_;
    for (std::size_t round = 0; round < nodes_ && moved != SIZE_MAX; ++round) {
      moved = SIZE_MAX;
      for (std::size_t a = 0; a < arcs_.size(); ++a) {
        const Arc& arc = arcs_[a];
        const double cost = arc.cost + (arc.crosses_end ? multiplier : 0);
        const auto relax = [&](std::size_t from, std::size_t to, double c, int how) {
          if (distance[from] + c >= distance[to] - kEpsilon) return;
          distance[to] = distance[from] + c;
          via[to] = how;
          moved = to;
        };
        if (arc.flow < arc.capacity) relax(arc.from, arc.to, cost, static_cast<int>(a) + 1);
        if (arc.flow > 0) relax(arc.to, arc.from, -cost, -static_cast<int>(a) - 1);
      }
    }
    if (moved == SIZE_MAX) return false;
    std::size_t node = moved;
    for (std::size_t i = 0; i < nodes_; ++i) node = before(node, via);
    double amount = INFINITY;
    const std::size_t start = node;
    do {
      const int how = via[node];
      const Arc& arc = arcs_[static_cast<std::size_t>(std::abs(how) - 1)];
      amount = std::min(amount, how > 0 ? arc.capacity - arc.flow : arc.flow);
      node = before(node, via);
    } while (node != start);
    do {
      const int how = via[node];
      arcs_[static_cast<std::size_t>(std::abs(how) - 1)].flow += how > 0 ? amount : -amount;
      node = before(node, via);
    } while (node != start);
    return true;
  }
  std::size_t before(std::size_t node, const std::vector<int>& via) const {
    const Arc& arc = arcs_[static_cast<std::size_t>(std::abs(via[node]) - 1)];
    return via[node] > 0 ? arc.from : arc.to;
  }

  const CacheProblem& problem_;
  const std::size_t n_;
  std::size_t nodes_ = 0;
  std::vector<Arc> arcs_;  // the line first, then the gaps
  double everything_moves_ = 0;
};

double best_multiplier(Circle& circle, double most) {
  double low = 0, high = most, best = circle.bound(0);
  for (int i = 0; i < 48; ++i) {
    const double a = low + (high - low) / 3, b = high - (high - low) / 3;
    const double at_a = circle.bound(a), at_b = circle.bound(b);
    best = std::max({best, at_a, at_b});
    if (at_a < at_b)
      low = a;
    else
      high = b;
  }
  return best;
}

}  // namespace

double least_cost(const CacheProblem& problem, double fetch_price, double write_price) {
  if (problem.uses.empty()) return 0;
  double best = 0;
  for (int sharing = 0; sharing < 3; ++sharing) {
    Circle circle(problem, fetch_price, write_price, sharing);
    const double most = (fetch_price + write_price) * static_cast<double>(problem.uses.size());
    best = std::max(best, problem.cyclic ? best_multiplier(circle, most) : circle.bound(0));
  }
  return best;
}

}  // namespace transload
