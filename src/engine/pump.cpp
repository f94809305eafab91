// The plan's hints: what leaves after an access, what is fetched ahead. All of it is optional (law 2).
#include <algorithm>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace transload {

namespace {
constexpr int kFetchesInFlight = 8;  ///< a link
}

void Engine::Impl::run_drops(std::uint32_t tick) {
  for (const Schedule::Drop& d : schedule.drops_after(tick)) {
    Copy& c = copy(d.block, d.tier);
    c.drop = true;
    c.write = d.write;
    try_drop(d.block, d.tier);
  }
}

void Engine::Impl::pump() {
  if (error || paused || options.lru || !schedule.active()) return;
  pump_drops();
  if (demand > 0) return;
  pump_fetches(Tier::host);
  if (frames_of[index(Tier::device)]) pump_fetches(Tier::device);
}

void Engine::Impl::pump_drops() {
  for (std::size_t n = pending_drops.size(); n > 0; --n) {
    const auto [id, tier] = pending_drops.front();
    pending_drops.erase(pending_drops.begin());
    try_drop(id, tier);
  }
}

/// What the plan counts on comes with other content, or is to be made, or there is no telling from where.
bool Engine::Impl::comes_otherwise(const Block& b, Tier tier) const {
  if (!b.alive) return true;
  return tier == Tier::device ? !valid(b, Tier::host) : valid(b, Tier::device) || !b.stored();
}

bool Engine::Impl::has_room_ahead(const Block& b, Tier tier, const Schedule::Fetch& fetch) const {
  const Frames& f = frames(tier);
  const std::uint64_t workspace = f.count() - f.limit();
  const std::uint64_t growth = fetch.workspace_frames - std::min(fetch.workspace_frames, workspace);
  const std::uint32_t owed = tier == Tier::host ? owed_frames : 0;
  return f.free_count() >= b.frames + fetch.reserved_frames + growth + owed;
}

void Engine::Impl::pump_fetches(Tier tier) {
  Schedule::Fetch fetch;
  while (schedule.peek_fetch(tier, fetch)) {
    Block& b = at(fetch.block);
    if (valid(b, tier) ? fetch.kept : fetch.kept && comes_otherwise(b, tier)) {
      schedule.pop_fetch(tier);
      continue;
    }
    if (!b.alive || fetch.not_before > schedule.now()) return;
    const Copy& c = b.copy[index(tier)];
    if (c.leaving || (c.drop && c.first != kNoFrame)) return;  // on its way out, and wanted again later
    if (valid(b, tier)) {
      schedule.pop_fetch(tier);
      continue;
    }
    if (c.writer || c.readers > 0 || b.copy[1 - index(tier)].writer) return;
    if (tier == Tier::device && !valid(b, Tier::host)) return;  // the host's own fetch brings it first
    const Link link = tier == Tier::device ? Link::host_to_device : Link::nvme_read;
    if (in_flight[static_cast<int>(link)] >= kFetchesInFlight) return;
    if (!has_room_ahead(b, tier, fetch)) return;
    if (!try_fetch(fetch.block, tier, true)) return;
    schedule.pop_fetch(tier);
  }
}

}  // namespace transload
