#include "engine/rehearsal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/size.h"
#include "engine/schedule.h"

namespace transload {

namespace {
constexpr int kDevice = 0, kHost = 1;

struct Copy {
  bool here = false, drop = false, write = false;
  int pins = 0;
  std::uint64_t score = 0;
};
struct State {
  bool alive = false, stored = false;
  Copy copy[2];
};

}  // namespace

struct Rehearsal::Impl {
  Impl(const std::vector<BlockSpec>& all, const Budgets& given);

  void pass(const Trace& trace, bool planned);
  void access(const Access& a);
  void release(const Trace& trace, std::uint32_t tick, bool planned);
  void set_workspace(const WorkspaceChange& change);
  void bring(int tier, std::uint32_t block);
  void copy_down(std::uint32_t block);
  void place(int tier, std::uint32_t block);
  void remove(int tier, std::uint32_t block);
  void make_room(int tier, std::uint64_t frames);
  void evict(int tier, std::uint32_t block);
  void try_drop(int tier, std::uint32_t block);
  void kill(std::uint32_t block);
  void pin(int tier, std::uint32_t block);
  void unpin(int tier, std::uint32_t block);
  void rank(int tier, std::uint32_t block);
  void count(Link link, std::uint32_t block);
  void note_peak(int tier) { peak[tier] = std::max(peak[tier], used[tier] + workspace[tier]); }
  std::uint64_t frames(std::uint32_t block) const;

  const std::vector<BlockSpec>& blocks;
  const Budgets budgets;
  Schedule schedule;
  const Trace* followed = nullptr;
  std::vector<State> states;
  std::set<std::pair<std::uint64_t, std::uint32_t>> idle[2];  // copies that may leave, by score: the last one first
  std::uint64_t used[2] = {0, 0}, workspace[2] = {0, 0}, peak[2] = {0, 0};  // frames
  LinkBytes moved;
};

Rehearsal::Impl::Impl(const std::vector<BlockSpec>& all, const Budgets& given)
    : blocks(all), budgets(given), states(all.size()) {
  for (std::size_t b = 0; b < blocks.size(); ++b) states[b].alive = states[b].stored = blocks[b].durable;
}

std::uint64_t Rehearsal::Impl::frames(std::uint32_t block) const {
  return ceil_div(blocks[block].bytes, budgets.frame_bytes);
}

void Rehearsal::Impl::count(Link link, std::uint32_t block) {
  moved.bytes[static_cast<int>(link)] += blocks[block].bytes;
}

Rehearsal::Rehearsal(const std::vector<BlockSpec>& blocks, const Budgets& budgets)
    : impl_(std::make_unique<Impl>(blocks, budgets)) {}

Rehearsal::~Rehearsal() = default;

void Rehearsal::follow(const Trace& trace, const Plan& plan) {
  Impl& i = *impl_;
  i.followed = &trace;
  i.schedule.set(trace, plan, i.blocks, i.budgets.frame_bytes);
  for (int tier = 0; tier < 2; ++tier)
    for (std::uint32_t b = 0; b < i.states.size(); ++b) i.rank(tier, b);
}

LinkBytes Rehearsal::step() {
  impl_->schedule.begin_step();
  impl_->pass(*impl_->followed, true);
  impl_->schedule.end_step();
  return std::exchange(impl_->moved, {});
}

LinkBytes Rehearsal::on_demand(const Trace& trace) {
  impl_->pass(trace, false);
  return std::exchange(impl_->moved, {});
}

std::uint64_t Rehearsal::peak_bytes(Tier tier) const {
  return impl_->peak[static_cast<int>(tier)] * impl_->budgets.frame_bytes;
}

LinkBytes Rehearsal::commit() {
  for (std::uint32_t b = 0; b < impl_->states.size(); ++b) {
    State& s = impl_->states[b];
    if (!impl_->blocks[b].durable || s.stored) continue;
    impl_->bring(kHost, b);
    impl_->count(Link::nvme_write, b);
    s.stored = true;
  }
  return std::exchange(impl_->moved, {});
}

void Rehearsal::Impl::pass(const Trace& trace, bool planned) {
  const auto ticks = static_cast<std::uint32_t>(trace.accesses.size());
  std::vector<std::vector<std::uint32_t>> releases(ticks + 1);
  for (std::uint32_t t = 0; t < ticks; ++t) releases[trace.accesses[t].release_tick].push_back(t);
  std::size_t change = 0;
  for (std::uint32_t t = 0; t < ticks; ++t) {
    for (const std::uint32_t done : releases[t]) release(trace, done, planned);
    for (; change < trace.workspace.size() && trace.workspace[change].tick <= t; ++change)
      set_workspace(trace.workspace[change]);
    const Access& a = trace.accesses[t];
    if (planned) schedule.advance(a.block, a.tier, a.kind);
    access(a);
  }
  for (const std::uint32_t done : releases[ticks]) release(trace, done, planned);
}

void Rehearsal::Impl::set_workspace(const WorkspaceChange& change) {
  const int tier = static_cast<int>(change.tier);
  workspace[tier] = ceil_div(change.bytes, budgets.frame_bytes);
  make_room(tier, 0);
  note_peak(tier);
}

void Rehearsal::Impl::access(const Access& a) {
  const std::uint32_t b = a.block.value;
  const int tier = static_cast<int>(a.tier);
  State& s = states[b];
  if (needs_content(a.kind) && s.alive)
    bring(tier, b);
  else if (!s.copy[tier].here)
    place(tier, b);
  pin(tier, b);
  if (makes_version(a.kind)) {
    s.alive = true;
    s.stored = false;
    remove(1 - tier, b);
  }
  rank(1 - tier, b);  // its next use may be another now
}

void Rehearsal::Impl::release(const Trace& trace, std::uint32_t tick, bool planned) {
  const Access& a = trace.accesses[tick];
  const std::uint32_t b = a.block.value;
  const int tier = static_cast<int>(a.tier);
  unpin(tier, b);
  if (a.kind == AccessKind::consume) kill(b);
  if (planned) {
    const State& s = states[b];
    if (tier == kDevice && schedule.leaves_device_after(tick) && s.copy[kDevice].here && !s.copy[kHost].here)
      copy_down(b);
    for (const Schedule::Drop& d : schedule.drops_after(tick)) {
      Copy& copy = states[d.block.value].copy[static_cast<int>(d.tier)];
      copy.drop = copy.here;
      copy.write = d.write;
      try_drop(static_cast<int>(d.tier), d.block.value);
    }
  }
  try_drop(tier, b);
}

void Rehearsal::Impl::bring(int tier, std::uint32_t b) {
  State& s = states[b];
  if (s.copy[tier].here) return;
  if (tier == kDevice) {
    bring(kHost, b);
    pin(kHost, b);
    place(kDevice, b);
    unpin(kHost, b);
    count(Link::host_to_device, b);
  } else if (s.copy[kDevice].here) {
    copy_down(b);
  } else {
    place(kHost, b);
    count(Link::nvme_read, b);
  }
}

void Rehearsal::Impl::copy_down(std::uint32_t b) {
  pin(kDevice, b);
  place(kHost, b);
  unpin(kDevice, b);
  count(Link::device_to_host, b);
}

void Rehearsal::Impl::place(int tier, std::uint32_t b) {
  make_room(tier, frames(b));
  states[b].copy[tier] = {.here = true};
  used[tier] += frames(b);
  note_peak(tier);
  rank(tier, b);
}

void Rehearsal::Impl::remove(int tier, std::uint32_t b) {
  Copy& copy = states[b].copy[tier];
  if (!copy.here) return;
  idle[tier].erase({copy.score, b});
  used[tier] -= frames(b);
  copy.here = copy.drop = false;
}

void Rehearsal::Impl::kill(std::uint32_t b) {
  states[b].alive = states[b].stored = false;
  remove(kDevice, b);
  remove(kHost, b);
}

void Rehearsal::Impl::pin(int tier, std::uint32_t b) {
  Copy& copy = states[b].copy[tier];
  ++copy.pins;
  copy.drop = false;
  idle[tier].erase({copy.score, b});
}

void Rehearsal::Impl::unpin(int tier, std::uint32_t b) {
  --states[b].copy[tier].pins;
  rank(tier, b);
}

void Rehearsal::Impl::rank(int tier, std::uint32_t b) {
  Copy& copy = states[b].copy[tier];
  if (!copy.here || copy.pins > 0) return;
  idle[tier].erase({copy.score, b});
  copy.score = schedule.leaving_score(BlockId(b), static_cast<Tier>(tier));
  idle[tier].emplace(copy.score, b);
}

void Rehearsal::Impl::make_room(int tier, std::uint64_t wanted) {
  const std::uint64_t all = budgets.of(static_cast<Tier>(tier)) / budgets.frame_bytes;
  while (used[tier] + workspace[tier] + wanted > all && !idle[tier].empty()) evict(tier, idle[tier].rbegin()->second);
}

void Rehearsal::Impl::evict(int tier, std::uint32_t b) {
  State& s = states[b];
  const Copy& copy = s.copy[tier];
  const bool elsewhere = s.copy[1 - tier].here && !(tier == kHost && copy.drop && copy.write);
  if (s.alive && !s.stored && !elsewhere) {
    if (tier == kDevice) {
      copy_down(b);
    } else {
      count(Link::nvme_write, b);
      s.stored = true;
    }
  }
  remove(tier, b);
}

void Rehearsal::Impl::try_drop(int tier, std::uint32_t b) {
  const Copy& copy = states[b].copy[tier];
  if (copy.here && copy.drop && copy.pins == 0) evict(tier, b);
}

}  // namespace transload
