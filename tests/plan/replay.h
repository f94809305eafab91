// Replay: carries a plan out over its trace, step after step, knowing nothing of how it was made. It checks that what
// an access needs is there, that no budget is exceeded, that nothing is lost, and counts what each link carries.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/size.h"
#include "plan/planner.h"

namespace transload::test {

class Replay {
 public:
  Replay(const PlanInput& input, const Plan& plan)
      : input_(input), plan_(plan), ticks_(static_cast<std::uint32_t>(input.trace->accesses.size())) {
    state_.resize(input.blocks->size());
    for (std::size_t b = 0; b < state_.size(); ++b) {
      state_[b].stored = has_store();
      if (!has_store() && spec(b).durable) take_frames(Tier::host, b);
    }
    find_content_at_start();
    for (int t = 0; t < 2; ++t) {
      for (const Plan::Fetch& f : plan.fetches[t]) REQUIRE(fetches_[t].emplace(f.need_tick, f.block.value).second);
      for (const Plan::Drop& d : plan.drops[t])
        REQUIRE(drops_[t].emplace(std::pair(d.after_tick, d.block.value), d.write).second);
    }
  }

  /// The first step finds what the plan expects of the one before missing and fetches it; from then on it is strict.
  void run(int steps) {
    for (int s = 0; s < steps; ++s) {
      strict_ = s > 0;
      if (s == 1 || s == steps - 1) {
        for (auto& b : bytes_) b = 0;
        peak_[0] = peak_[1] = 0;
      }
      for (now_ = 0; now_ < ticks_; ++now_) tick();
      release_at(ticks_);
    }
    for (int link = 0; link < kLinks; ++link) {
      INFO(name_of(static_cast<Link>(link)));
      REQUIRE(bytes_[link] == plan_.bytes[link]);
      REQUIRE(bytes_[link] >= plan_.lower_bound[link]);
    }
    REQUIRE(peak_[1] * input_.budgets.frame_bytes <= plan_.peak_bytes[1]);
    REQUIRE(peak_[0] * input_.budgets.frame_bytes <= plan_.peak_bytes[0]);
  }

 private:
  struct State {
    bool here[2] = {false, false};  // a valid copy in device, host
    bool alive = false;             // the block has content
    bool stored = false;            // nvme has the current version
    int pins[2] = {0, 0};
  };

  const BlockSpec& spec(std::size_t b) const { return (*input_.blocks)[b]; }
  bool has_store() const { return input_.budgets.nvme_bytes > 0; }
  std::uint64_t frames(std::size_t b) const { return ceil_div(spec(b).bytes, input_.budgets.frame_bytes); }
  void count(Link link, std::size_t b) { bytes_[static_cast<int>(link)] += spec(b).bytes; }

  /// In the steady state a block begins a step as it ended the one before.
  void find_content_at_start() {
    for (std::size_t b = 0; b < state_.size(); ++b) state_[b].alive = spec(b).durable;
    for (const Access& a : input_.trace->accesses) state_[a.block.value].alive = a.kind != AccessKind::consume;
    for (std::size_t b = 0; b < state_.size(); ++b)
      if (!has_store() && state_[b].alive && !state_[b].here[1]) take_frames(Tier::host, b);
  }

  void take_frames(Tier tier, std::size_t b) {
    const int t = static_cast<int>(tier);
    REQUIRE_FALSE(state_[b].here[t]);
    state_[b].here[t] = true;
    used_[t] += frames(b);
    peak_[t] = std::max(peak_[t], used_[t] + ceil_div(workspace_[t], input_.budgets.frame_bytes));
    check_room(tier);
  }
  void free_frames(Tier tier, std::size_t b) {
    const int t = static_cast<int>(tier);
    if (!state_[b].here[t]) return;
    state_[b].here[t] = false;
    used_[t] -= frames(b);
  }
  void check_room(Tier tier) const {
    if (!strict_) return;
    const int t = static_cast<int>(tier);
    std::string there;
    for (std::size_t b = 0; b < state_.size(); ++b)
      if (state_[b].here[t]) there += " " + std::to_string(b);
    INFO(name_of(tier) << " at tick " << now_ << " holds" << there);
    REQUIRE(used_[t] + ceil_div(workspace_[t], input_.budgets.frame_bytes) <=
            input_.budgets.of(tier) / input_.budgets.frame_bytes);
  }

  /// Every durable version that the store lacks; the device's must have come down by then.
  void commit() {
    for (std::size_t b = 0; b < state_.size(); ++b) {
      if (!spec(b).durable || !state_[b].alive || state_[b].stored) continue;
      INFO("commit of block " << b);
      REQUIRE((!strict_ || state_[b].here[1]));
      count(Link::nvme_write, b);
      state_[b].stored = true;
    }
  }

  void tick() {
    release_at(now_);
    if (now_ == input_.trace->commit_tick) commit();
    for (const WorkspaceChange& w : input_.trace->workspace)
      if (w.tick == now_) workspace_[static_cast<int>(w.tier)] = w.bytes;
    // Copies down from the device follow the change of workspace; those of the step's end belong to the next tick 0.
    if (now_ == 0) drop_released(ticks_, Tier::device);
    drop_released(now_, Tier::device);
    const Access& a = input_.trace->accesses[now_];
    const std::size_t b = a.block.value;
    if (needs_content(a.kind) && state_[b].alive) bring(a.tier, b);
    if (a.kind != AccessKind::read) free_frames(a.tier == Tier::host ? Tier::device : Tier::host, b);
    if (!state_[b].here[static_cast<int>(a.tier)]) take_frames(a.tier, b);
    check_room(Tier::device);
    check_room(Tier::host);
    ++state_[b].pins[static_cast<int>(a.tier)];
    if (makes_version(a.kind)) {
      state_[b].alive = true;
      state_[b].stored = false;
    }
  }

  /// Makes the content valid at the tier, as the plan says (or, in the first step, without it).
  void bring(Tier tier, std::size_t b) {
    State& s = state_[b];
    if (s.here[static_cast<int>(tier)]) return;
    INFO("block " << b << " at tick " << now_ << " on " << name_of(tier));
    if (tier == Tier::host && s.here[0] && !s.stored) {  // made on the device, kept there, wanted here
      write_down(b);
      return;
    }
    if (strict_) REQUIRE(fetches_[static_cast<int>(tier)].count({now_, static_cast<std::uint32_t>(b)}) == 1);
    if (tier == Tier::device) {
      const bool planned = fetches_[0].count({now_, static_cast<std::uint32_t>(b)}) == 1;
      const bool was_on_host = s.here[1];
      bring(Tier::host, b);
      take_frames(tier, b);
      count(Link::host_to_device, b);
      if (!planned && !was_on_host) free_frames(Tier::host, b);  // a stand-in of the first step
      if (host_copy_is_passing(b)) drop(Tier::host, b, drops_[1].at({now_ % ticks_, static_cast<std::uint32_t>(b)}));
      return;
    }
    REQUIRE(s.stored);
    take_frames(tier, b);
    count(Link::nvme_read, b);
  }

  /// The host's copy only passes on the way to or from the device: its drop hangs on this tick's traffic.
  bool host_copy_is_passing(std::size_t b) const {
    const std::uint32_t tick = now_ % ticks_;
    const Access& a = input_.trace->accesses[tick];
    const bool accessed = a.tier == Tier::host && a.block.value == b;
    return !accessed && drops_[1].count({tick, static_cast<std::uint32_t>(b)}) != 0;
  }

  void write_down(std::size_t b) {
    take_frames(Tier::host, b);
    count(Link::device_to_host, b);
  }

  /// Without `write` the device has the content and will change or end it: nobody will ask for this version below.
  void drop(Tier tier, std::size_t b, bool write) {
    State& s = state_[b];
    INFO("drop of block " << b << " at tick " << now_ << " from " << name_of(tier));
    REQUIRE(s.pins[static_cast<int>(tier)] == 0);
    if (strict_) REQUIRE(s.here[static_cast<int>(tier)]);
    if (!s.here[static_cast<int>(tier)]) return;
    const bool elsewhere = s.stored || s.here[1 - static_cast<int>(tier)];
    if (s.alive && !elsewhere && tier == Tier::device) {
      write_down(b);
      if (host_copy_is_passing(b)) {
        free_frames(tier, b);
        drop(Tier::host, b, drops_[1].at({now_ % ticks_, static_cast<std::uint32_t>(b)}));
        return;
      }
    } else if (s.alive && !s.stored && tier == Tier::host) {
      REQUIRE((write || s.here[0] || !strict_));
      if (!write && s.here[0]) return free_frames(tier, b);
      REQUIRE(has_store());
      count(Link::nvme_write, b);
      s.stored = true;
    }
    free_frames(tier, b);
  }

  /// Access t is over just before access number `when` of this step.
  template <class Fn>
  void for_each_released(std::uint32_t when, Fn&& fn) {
    for (std::uint32_t t = 0; t < std::min(when, ticks_); ++t)
      if (input_.trace->accesses[t].release_tick == when) fn(t, input_.trace->accesses[t]);
  }

  void release_at(std::uint32_t when) {
    for_each_released(when, [&](std::uint32_t, const Access& a) {
      State& s = state_[a.block.value];
      --s.pins[static_cast<int>(a.tier)];
      if (a.kind != AccessKind::consume) return;
      s.alive = false;
      free_frames(Tier::device, a.block.value);
      free_frames(Tier::host, a.block.value);
    });
    drop_released(when, Tier::host);
  }

  /// In the order of blocks: copies that only pass through the host follow each other.
  void drop_released(std::uint32_t when, Tier tier) {
    std::map<std::uint32_t, bool> dropped;
    for_each_released(when, [&](std::uint32_t t, const Access& a) {
      const auto found = drops_[static_cast<int>(tier)].find({t, a.block.value});
      if (found != drops_[static_cast<int>(tier)].end() && a.tier == tier)
        dropped.emplace(found->first.second, found->second);
    });
    for (const auto& [b, write] : dropped) drop(tier, b, write);
  }

  const PlanInput& input_;
  const Plan& plan_;
  const std::uint32_t ticks_;
  std::vector<State> state_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> fetches_[2];  // (tick, block)
  std::map<std::pair<std::uint32_t, std::uint32_t>, bool>
      drops_[2];  // likewise: with a write, where the tier below lacks it
  std::uint64_t used_[2] = {0, 0}, workspace_[2] = {0, 0}, peak_[2] = {0, 0}, bytes_[kLinks] = {};
  std::uint32_t now_ = 0;
  bool strict_ = false;
};

}  // namespace transload::test
