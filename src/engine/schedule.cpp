#include "engine/schedule.h"

#include <algorithm>

#include "base/size.h"
#include "plan/tier_sequences.h"

namespace transload {

namespace {
constexpr std::uint64_t kAnyRoom = std::uint64_t{1} << 40;
constexpr std::uint64_t kFetchedScore = std::uint64_t{1} << 62;  // beyond all times
}  // namespace

void Schedule::set(const Trace& trace, const Plan& plan, const std::vector<BlockSpec>& blocks,
                   std::uint64_t frame_bytes) {
  accesses_ = trace.accesses;
  index_uses(trace, blocks.size());
  index_drops(plan);
  index_fetches(plan);
  index_writes(plan, blocks, frame_bytes);
  index_workspace(trace, frame_bytes);
  in_step_ = false;
  settling_ = true;
  once_ = plan.once;
  tick_ = 0;
  for (int t = 0; t < 2; ++t) {
    cursor_[t] = 0;
    cursor_step_[t] = step_;
  }
}

void Schedule::clear() {
  accesses_.clear();
  in_step_ = false;
  tick_ = 0;
}

void Schedule::index_uses(const Trace& trace, std::size_t blocks) {
  push_ = leaves_device(trace, blocks);
  for (auto& uses : uses_) uses.assign(blocks, {});
  for (std::uint32_t tick = 0; tick < accesses_.size(); ++tick) {
    const Access& a = accesses_[tick];
    if (a.tier == Tier::device) uses_[0][a.block.value].push_back(tick);
    uses_[1][a.block.value].push_back(tick);
  }
}

void Schedule::index_drops(const Plan& plan) {
  drops_.clear();
  drops_begin_.assign(accesses_.size() + 1, 0);
  for (const auto& drops : plan.drops)
    for (const Plan::Drop& d : drops) ++drops_begin_[d.after_tick % accesses_.size() + 1];
  for (std::size_t t = 0; t < accesses_.size(); ++t) drops_begin_[t + 1] += drops_begin_[t];
  drops_.resize(drops_begin_.back());
  std::vector<std::uint32_t> at(drops_begin_.begin(), drops_begin_.end() - 1);
  for (int tier = 0; tier < 2; ++tier)
    for (const Plan::Drop& d : plan.drops[tier])
      drops_[at[d.after_tick % accesses_.size()]++] = {d.block, static_cast<Tier>(tier), d.write};
}

void Schedule::index_fetches(const Plan& plan) {
  const auto n = static_cast<std::int64_t>(accesses_.size());
  for (int tier = 0; tier < 2; ++tier) {
    std::vector<std::vector<std::uint32_t>> ends(uses_[0].size());  // of copies here
    for (const Plan::Drop& d : plan.drops[tier])
      ends[d.block.value].push_back(static_cast<std::uint32_t>(d.after_tick % n));
    for (std::uint32_t t = 0; t < accesses_.size(); ++t)
      if (static_cast<int>(accesses_[t].tier) != tier && accesses_[t].kind != AccessKind::read)
        ends[accesses_[t].block.value].push_back(t);
    for (auto& list : ends) std::sort(list.begin(), list.end());
    fetches_[tier].clear();
    fetched_[tier].assign(accesses_.size(), false);
    for (const Plan::Fetch& f : plan.fetches[tier]) fetched_[tier][f.need_tick % accesses_.size()] = true;
    for (const Plan::Fetch& f : plan.fetches[tier]) {
      Planned planned{.block = f.block, .need = f.need_tick};
      for (const std::int64_t shift : {-n, std::int64_t{0}, n})
        for (const std::uint32_t d : ends[f.block.value])
          if (d + shift < static_cast<std::int64_t>(f.need_tick)) planned.not_before = d + shift;
      fetches_[tier].push_back(planned);
    }
    add_kept(fetches_[tier], tier);
    std::stable_sort(fetches_[tier].begin(), fetches_[tier].end(),
                     [](const Planned& a, const Planned& b) { return a.need < b.need; });
  }
}

/// First uses in a step of content that the plan does not fetch for them.
void Schedule::add_kept(std::vector<Planned>& list, int tier) const {
  for (std::uint32_t b = 0; b < uses_[tier].size(); ++b) {
    if (uses_[tier][b].empty()) continue;
    const std::uint32_t tick = uses_[tier][b].front();
    if (!needs_content(accesses_[tick].kind) || fetched_[tier][tick]) continue;
    list.push_back({.block = BlockId(b), .need = tick, .kept = true});
  }
}

void Schedule::index_writes(const Plan& plan, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes) {
  std::vector<std::uint64_t> frames[2];
  for (auto& f : frames) f.assign(accesses_.size(), 0);
  down_.assign(accesses_.size(), 0);
  for (std::size_t t = 0; t < accesses_.size(); ++t) {
    const Access& a = accesses_[t];
    if (a.kind == AccessKind::write)
      frames[static_cast<int>(a.tier)][t] += ceil_div(blocks[a.block.value].bytes, frame_bytes);
    if (push_[t]) down_[t] += static_cast<std::uint32_t>(ceil_div(blocks[a.block.value].bytes, frame_bytes));
  }
  for (const Plan::Drop& d : plan.drops[0]) {
    const std::size_t tick = d.after_tick % accesses_.size();
    if (d.write && !(push_[tick] && accesses_[tick].block == d.block))
      down_[tick] += static_cast<std::uint32_t>(ceil_div(blocks[d.block.value].bytes, frame_bytes));
  }
  // What the device writes down takes room in the host tier too.
  for (std::size_t t = 0; t < accesses_.size(); ++t) frames[1][t] += down_[t];
  for (int tier = 0; tier < 2; ++tier) {
    writes_[tier].assign(accesses_.size() + 1, 0);
    for (std::size_t t = 0; t < accesses_.size(); ++t) writes_[tier][t + 1] = writes_[tier][t] + frames[tier][t];
  }
}

void Schedule::index_workspace(const Trace& trace, std::uint64_t frame_bytes) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    std::vector<std::uint64_t> beside = workspace_by_tick(trace, tier);
    for (std::uint64_t& bytes : beside) bytes = kAnyRoom - ceil_div(bytes, frame_bytes);
    if (!beside.empty()) beside_workspace_[static_cast<int>(tier)].emplace(beside);
  }
}

void Schedule::begin_step() {
  in_step_ = active();
  tick_ = 0;
}

void Schedule::end_step() {
  if (!in_step_) return;
  in_step_ = settling_ = false;
  ++step_;
  tick_ = 0;
}

Schedule::Match Schedule::advance(BlockId block, Tier tier, AccessKind kind) {
  Match match;
  const auto same = [&](const Access& a) { return a.block == block && a.tier == tier && a.kind == kind; };
  const auto begin = accesses_.begin() + tick_;
  const auto found = std::find_if(begin, accesses_.end(), same);
  if (found != begin || found == accesses_.end()) ++deviations_;
  if (found == accesses_.end()) return match;
  match.skipped_from = tick_;
  match.tick = match.skipped_to = static_cast<std::uint32_t>(found - accesses_.begin());
  tick_ = match.tick + 1;
  return match;
}

std::span<const Schedule::Drop> Schedule::drops_after(std::uint32_t tick) const {
  if (tick >= accesses_.size()) return {};
  return {drops_.data() + drops_begin_[tick], drops_.data() + drops_begin_[tick + 1]};
}

std::uint64_t Schedule::next_use(BlockId block, Tier tier) const {
  const auto& uses = uses_[static_cast<int>(tier)][block.value];
  if (uses.empty()) return UINT64_MAX;
  const auto found = std::lower_bound(uses.begin(), uses.end(), tick_);
  if (found != uses.end()) return step_ * accesses_.size() + *found;
  return (step_ + 1) * accesses_.size() + uses.front();
}

bool Schedule::fetched_for(Tier tier, std::uint64_t time) const {
  return time != UINT64_MAX && fetched_[static_cast<int>(tier)][time % accesses_.size()];
}

std::uint64_t Schedule::leaving_score(BlockId block, Tier tier) const {
  const std::uint64_t next = next_use(block, tier);
  if (next == UINT64_MAX) return UINT64_MAX - 1;
  return fetched_for(tier, next) ? kFetchedScore + next : next;
}

std::uint64_t Schedule::writes_until(Tier tier, std::uint64_t time) const {
  const auto& sums = writes_[static_cast<int>(tier)];
  const std::uint64_t n = accesses_.size();
  return time / n * sums.back() + sums[time % n];
}

std::uint64_t Schedule::most_workspace(Tier tier, std::uint64_t need) const {
  const std::uint64_t n = accesses_.size(), from = now() % n;
  const std::int64_t least = beside_workspace_[static_cast<int>(tier)]->least(from, from + (need - now()) + 1);
  return kAnyRoom - static_cast<std::uint64_t>(least);
}

bool Schedule::peek_fetch(Tier tier, Fetch& fetch) {
  const int t = static_cast<int>(tier);
  const auto& list = fetches_[t];
  if (!active() || list.empty()) return false;
  const std::uint64_t n = accesses_.size();
  for (;;) {
    const Planned& planned = list[cursor_[t]];
    const std::uint64_t base = cursor_step_[t] * n;
    fetch.block = planned.block;
    fetch.need = base + planned.need;
    if (fetch.need < now()) {
      pop_fetch(tier);
      continue;
    }
    if (fetch.need - now() >= n || (once_ && cursor_step_[t] > step_)) return false;
    if (planned.kept && !settling_) {
      pop_fetch(tier);
      continue;
    }
    const std::int64_t not_before =
        planned.not_before == INT64_MIN ? -1 : static_cast<std::int64_t>(base) + planned.not_before;
    fetch.not_before = not_before < 0 ? 0 : static_cast<std::uint64_t>(not_before) + 1;
    fetch.reserved_frames = writes_until(tier, fetch.need) - writes_until(tier, now());
    fetch.workspace_frames = most_workspace(tier, fetch.need);
    fetch.kept = planned.kept;
    return true;
  }
}

void Schedule::pop_fetch(Tier tier) {
  const int t = static_cast<int>(tier);
  if (++cursor_[t] < fetches_[t].size()) return;
  cursor_[t] = 0;
  ++cursor_step_[t];
}

void Schedule::rewind(Tier tier) {
  const int t = static_cast<int>(tier);
  cursor_[t] = 0;
  cursor_step_[t] = step_ == 0 ? 0 : step_ - 1;  // needs may lie in the step after their own
}

}  // namespace transload
