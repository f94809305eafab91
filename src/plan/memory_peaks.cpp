#include "plan/memory_peaks.h"

#include <algorithm>

#include "base/size.h"
#include "plan/tier_sequences.h"

namespace transload {
namespace {

constexpr int kSteps = 3;  // the last one repeats what the one before left

/// Which blocks lie in device and host from access to access.
class Walk {
 public:
  Walk(const PlanInput& input, const Plan& plan) : input_(input), trace_(*input.trace) {
    const std::size_t ticks = trace_.accesses.size();
    for (int tier = 0; tier < 2; ++tier) {
      arrivals_[tier].resize(ticks);
      departures_[tier].resize(ticks + 1);
      here_[tier].assign(input.blocks->size(), 0);
      for (const Plan::Fetch& f : plan.fetches[tier]) arrivals_[tier][f.need_tick % ticks].push_back(f.block);
      for (const Plan::Drop& d : plan.drops[tier])
        departures_[tier][release_of(d.after_tick % ticks, d.block)].push_back(d.block);
    }
    ends_.resize(ticks + 1);
    for (std::size_t t = 0; t < ticks; ++t)
      if (trace_.accesses[t].kind == AccessKind::consume) ends_[end_of(t)].push_back(trace_.accesses[t].block);
    made_on_device_.assign(input.blocks->size(), 0);
    workspace_[0] = workspace_by_tick(trace_, Tier::device);
    workspace_[1] = workspace_by_tick(trace_, Tier::host);
  }

  TierPeak peak(Tier tier) {
    TierPeak peak;
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t t = 0; t < trace_.accesses.size(); ++t) {
        leave(t);
        arrive(t);
        if (step == kSteps - 1) note(static_cast<int>(tier), t, peak);
      }
      leave(trace_.accesses.size());
    }
    return peak;
  }

 private:
  /// A rank's gradient of a chunk is summed beside the backward pass of the next one, at the latest before that one's
  /// sum (optim/shard_exchange.cpp).
  std::size_t end_of(std::size_t tick) const {
    if (!is_sum(tick)) return trace_.accesses[tick].release_tick;
    std::size_t next = tick + 1;
    while (next < trace_.accesses.size() && !is_sum(next)) ++next;
    return next;
  }
  bool is_sum(std::size_t tick) const {
    const Access& a = trace_.accesses[tick];
    return a.kind == AccessKind::consume && use_of((*input_.blocks)[a.block.value].plane) == MemoryKind::local;
  }
  /// A copy leaves when the access that its drop names is released, which may be one of another block.
  std::size_t release_of(std::size_t tick, BlockId block) const {
    const Access& a = trace_.accesses[tick];
    return a.block == block ? a.release_tick : tick + 1;
  }
  void leave(std::size_t t) {
    for (const BlockId b : ends_[t]) put(0, b, false), put(1, b, false);
    for (const BlockId b : departures_[0][t]) {
      if (here_[0][b.value] != 0 && made_on_device_[b.value] != 0) put(1, b, true);  // it goes down to the host
      put(0, b, false);
    }
    for (const BlockId b : departures_[1][t]) put(1, b, false);
  }
  void arrive(std::size_t t) {
    for (int tier = 0; tier < 2; ++tier)
      for (const BlockId b : arrivals_[tier][t]) put(tier, b, true);
    const Access& a = trace_.accesses[t];
    const int tier = static_cast<int>(a.tier);
    put(tier, a.block, true);
    if (!makes_version(a.kind)) return;
    put(1 - tier, a.block, false);
    made_on_device_[a.block.value] = a.tier == Tier::device ? 1 : 0;
  }
  void put(int tier, BlockId b, bool here) {
    if ((here_[tier][b.value] != 0) == here) return;
    here_[tier][b.value] = here ? 1 : 0;
    const BlockSpec& spec = (*input_.blocks)[b.value];
    const std::uint64_t padding = round_up(spec.bytes, input_.budgets.frame_bytes) - spec.bytes;
    std::uint64_t& use = now_[tier][static_cast<std::size_t>(use_of(spec.plane))];
    std::uint64_t& rest = now_[tier][static_cast<std::size_t>(MemoryKind::padding)];
    use = here ? use + spec.bytes : use - spec.bytes;
    rest = here ? rest + padding : rest - padding;
  }
  void note(int tier, std::size_t t, TierPeak& peak) {
    now_[tier][static_cast<std::size_t>(MemoryKind::workspace)] =
        round_up(workspace_[tier][t], input_.budgets.frame_bytes);
    std::uint64_t used = 0;
    for (std::size_t use = 0; use < now_[tier].size(); ++use) {
      used += now_[tier][use];
      peak.most[use] = std::max(peak.most[use], now_[tier][use]);
    }
    peak.used = std::max(peak.used, used);
  }

  const PlanInput& input_;
  const Trace& trace_;
  std::vector<std::vector<BlockId>> arrivals_[2], departures_[2], ends_;  // by tick
  std::vector<char> here_[2], made_on_device_;                            // by block
  std::vector<std::uint64_t> workspace_[2];                               // by tick
  MemoryBytes now_[2]{};
};

}  // namespace

TierPeak memory_peak(const PlanInput& input, const Plan& plan, Tier tier) {
  if (input.trace->accesses.empty() || input.budgets.of(tier) == 0) return {};
  return Walk(input, plan).peak(tier);
}

}  // namespace transload
