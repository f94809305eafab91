// Least recently used, on demand, with the planner's accounting: what a cache without a plan would move.
#include <algorithm>
#include <set>

#include "base/size.h"
#include "plan/planner.h"
#include "plan/tier_sequences.h"

namespace transload {

namespace {

constexpr int kDevice = 0, kHost = 1;

class Lru {
 public:
  explicit Lru(const PlanInput& input) : input_(input), state_(input.blocks->size()) {
    const std::uint64_t frame = input.budgets.frame_bytes;
    for (int t = 0; t < 2; ++t) {
      const std::uint64_t in_flight = ceil_div(input.in_flight_bytes[t], frame);
      for (const std::uint64_t bytes : workspace_by_tick(*input.trace, static_cast<Tier>(t))) {
        const std::uint64_t all = input.budgets.of(static_cast<Tier>(t)) / frame;
        const std::uint64_t taken = ceil_div(bytes, frame) + in_flight;
        capacity_[t].push_back(all > taken ? all - taken : 0);
      }
    }
    for (std::size_t b = 0; b < state_.size(); ++b) state_[b].alive = (*input.blocks)[b].durable;
    for (const Access& a : input.trace->accesses) state_[a.block.value].alive = a.kind != AccessKind::consume;
    releases_.resize(input.trace->accesses.size() + 1);
    for (std::uint32_t t = 0; t < input.trace->accesses.size(); ++t)
      releases_[input.trace->accesses[t].release_tick].push_back(t);
  }

  LinkBytes step() {
    moved_ = {};
    const auto ticks = static_cast<std::uint32_t>(input_.trace->accesses.size());
    for (tick_ = 0; tick_ < ticks; ++tick_) {
      release(tick_);
      make_room(kDevice, 0);
      make_room(kHost, 0);
      access(input_.trace->accesses[tick_]);
    }
    tick_ = ticks - 1;
    release(ticks);
    return moved_;
  }

 private:
  struct State {
    bool here[2] = {false, false}, alive = false, stored = true;
    int pins[2] = {0, 0};
    std::uint64_t stamp[2] = {0, 0};
  };

  std::uint64_t frames(std::uint32_t b) const {
    return ceil_div((*input_.blocks)[b].bytes, input_.budgets.frame_bytes);
  }
  void count(Link link, std::uint32_t b) { moved_.bytes[static_cast<int>(link)] += (*input_.blocks)[b].bytes; }

  void release(std::uint32_t when) {
    for (const std::uint32_t t : releases_[when]) {
      const Access& a = input_.trace->accesses[t];
      const int tier = static_cast<int>(a.tier);
      unpin(tier, a.block.value);
      if (a.kind != AccessKind::consume) continue;
      state_[a.block.value].alive = false;
      forget(kDevice, a.block.value);
      forget(kHost, a.block.value);
    }
  }

  void access(const Access& a) {
    const std::uint32_t b = a.block.value;
    const int tier = static_cast<int>(a.tier);
    State& s = state_[b];
    if (needs_content(a.kind) && s.alive) bring(tier, b);
    if (a.kind != AccessKind::read) forget(1 - tier, b);
    if (!s.here[tier]) place(tier, b);
    pin(tier, b);
    if (!makes_version(a.kind)) return;
    s.alive = true;
    s.stored = false;
  }

  void bring(int tier, std::uint32_t b) {
    State& s = state_[b];
    if (s.here[tier]) return;
    if (tier == kDevice) {
      bring(kHost, b);
      pin(kHost, b);
      place(kDevice, b);
      unpin(kHost, b);
      count(Link::host_to_device, b);
    } else if (s.here[kDevice]) {
      copy_down(b);
    } else {
      place(kHost, b);
      count(Link::nvme_read, b);
    }
  }

  void copy_down(std::uint32_t b) {
    pin(kDevice, b);
    place(kHost, b);
    unpin(kDevice, b);
    count(Link::device_to_host, b);
  }

  void pin(int tier, std::uint32_t b) {
    State& s = state_[b];
    if (s.pins[tier]++ == 0) idle_[tier].erase({s.stamp[tier], b});
  }
  void unpin(int tier, std::uint32_t b) {
    State& s = state_[b];
    if (--s.pins[tier] > 0 || !s.here[tier]) return;
    s.stamp[tier] = ++clock_;
    idle_[tier].emplace(s.stamp[tier], b);
  }

  void place(int tier, std::uint32_t b) {
    make_room(tier, frames(b));
    State& s = state_[b];
    s.here[tier] = true;
    used_[tier] += frames(b);
    if (s.pins[tier] > 0) return;
    s.stamp[tier] = ++clock_;
    idle_[tier].emplace(s.stamp[tier], b);
  }
  void forget(int tier, std::uint32_t b) {
    State& s = state_[b];
    if (!s.here[tier]) return;
    idle_[tier].erase({s.stamp[tier], b});
    s.here[tier] = false;
    used_[tier] -= frames(b);
  }

  /// Where pins alone exceed what is left beside the room for transfers, that room is used, as the plan does.
  void make_room(int tier, std::uint64_t wanted) {
    if (tier == kHost && input_.budgets.nvme_bytes == 0) return;
    while (used_[tier] + wanted > capacity_[tier][tick_] && !idle_[tier].empty()) {
      const std::uint32_t victim = idle_[tier].begin()->second;
      State& s = state_[victim];
      if (tier == kDevice && s.alive && !s.here[kHost] && !s.stored) copy_down(victim);
      if (tier == kHost && s.alive && !s.stored) {
        count(Link::nvme_write, victim);
        s.stored = true;
      }
      forget(tier, victim);
    }
  }

  const PlanInput& input_;
  std::vector<State> state_;
  std::vector<std::uint64_t> capacity_[2];
  std::vector<std::vector<std::uint32_t>> releases_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> idle_[2];  // not pinned, by last use
  std::uint64_t used_[2] = {0, 0}, clock_ = 0;
  std::uint32_t tick_ = 0;
  LinkBytes moved_;
};

}  // namespace

LinkBytes simulate_lru(const PlanInput& input) {
  if (input.trace->accesses.empty()) return {};
  constexpr int kMostSteps = 12;
  Lru lru(input);
  LinkBytes last = lru.step();
  for (int i = 0; i < kMostSteps; ++i) {
    const LinkBytes now = lru.step();
    const bool steady = std::equal(std::begin(now.bytes), std::end(now.bytes), std::begin(last.bytes));
    last = now;
    if (steady && i > 0) break;
  }
  return last;
}

}  // namespace transload
