// Room: frames of a tier, who gives them up, and waiting for them.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "engine/engine_impl.h"

namespace transload {

namespace {
constexpr std::uint64_t kLeastScore = UINT64_MAX - 1;  // less the clock of the last use
}  // namespace

bool Engine::Impl::valid(const Block& b, Tier tier) const {
  const Copy& c = b.copy[index(tier)];
  return b.alive && c.first != kNoFrame && c.version == b.version;
}

/// Blocks that workspace has still to clear count as blocks.
std::uint32_t Engine::Impl::workspace_frames(Tier tier) const {
  const Frames& f = frames(tier);
  return std::min(f.count() - f.limit(), f.count() - f.used_count());
}

void Engine::Impl::note_peak(Tier tier) {
  const std::uint64_t bytes = std::uint64_t{frames(tier).used_count() + workspace_frames(tier)} * options.frame_bytes;
  std::uint64_t& peak = counters.peak_bytes[index(tier)];
  if (bytes > peak) peak = bytes;
}

bool Engine::Impl::take_frames(BlockId id, Tier tier) {
  Block& b = at(id);
  Copy& c = b.copy[index(tier)];
  if (c.first == kNoFrame) {
    if (frames(tier).free_count() < b.frames) return false;
    const MemoryChange change(*this, b, tier);
    c.first = frames(tier).take(b.frames, id.value);
    note_peak(tier);
  }
  c.version = b.version;
  return true;
}

void Engine::Impl::release_frames(Block& b, Tier tier) {
  Copy& c = b.copy[index(tier)];
  if (c.first == kNoFrame) return;
  TRANSLOAD_CHECK(c.idle(), "{} leaves {} while in use", b.spec.name, name_of(tier));
  count_copy(b, tier, false);
  frames(tier).give_back(c.first);
  if (valid(b, tier) && !c.drop) schedule.rewind(tier);  // not as planned: a fetch passed over may be wanted again
  c.first = kNoFrame;
  c.drop = false;
  if (c.prefetched) ++counters.wasted;
  c.prefetched = false;
}

bool Engine::Impl::has_other_copy(const Block& b, Tier tier) const {
  if (!b.alive || b.stored()) return true;
  if (const Copy& own = b.copy[index(tier)]; tier == Tier::host && own.drop && own.write && store != nullptr)
    return false;
  const Tier other = tier == Tier::host ? Tier::device : Tier::host;
  const Copy& c = b.copy[index(other)];
  return valid(b, other) && !c.arriving;
}

bool Engine::Impl::evict(BlockId id, Tier tier) {
  Block& b = at(id);
  Copy& c = b.copy[index(tier)];
  if (!valid(b, tier) || has_other_copy(b, tier)) {
    release_frames(b, tier);
    return true;
  }
  const bool started = tier == Tier::device ? start_copy(id, Tier::device, false) : start_write(id);
  if (!started) {
    if (tier == Tier::device) make_room(Tier::host, b.frames, id);
    return false;
  }
  {
    const MemoryChange change(*this, b, tier);
    c.leaving = true;
  }
  c.drop = true;
  leaving_frames[index(tier)] += b.frames;
  return true;
}

/// Dead or stale content leaves first, then by plan, or the longest unused.
BlockId Engine::Impl::choose_victim(Tier tier, BlockId protect) const {
  BlockId victim;
  std::uint64_t best = 0;
  const bool planned = schedule.active() && !options.lru;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Copy& c = blocks[i].copy[index(tier)];
    if (!c.idle() || c.leaving || BlockId(i) == protect) continue;
    std::uint64_t score = UINT64_MAX;
    if (valid(blocks[i], tier)) score = planned ? schedule.leaving_score(BlockId(i), tier) : kLeastScore - c.last_use;
    if (!victim.valid() || score > best) {
      victim = BlockId(i);
      best = score;
    }
  }
  return victim;
}

bool Engine::Impl::make_room(Tier tier, std::uint32_t wanted, BlockId protect) {
  while (frames(tier).free_count() + leaving_frames[index(tier)] + due_frames[index(tier)] < wanted) {
    const BlockId victim = choose_victim(tier, protect);
    if (!victim.valid() || !evict(victim, tier)) return frames(tier).free_count() >= wanted;
  }
  return true;
}

void Engine::Impl::try_drop(BlockId id, Tier tier) {
  Copy& c = copy(id, tier);
  if (!c.drop || c.leaving) return;
  if (c.first == kNoFrame) {
    c.drop = tier == Tier::host && at(id).copy[index(Tier::device)].drop;  // it is yet to come, and leaves then
    return;
  }
  if (c.idle() && !evict(id, tier)) pending_drops.emplace_back(id, tier);
}

std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, int> Engine::Impl::room_state(Tier tier) const {
  return {frames(tier).free_count(), frames(tier).used_count(), frames(Tier::host).free_count(), transfers_in_flight};
}

void Engine::Impl::wait(std::unique_lock<std::mutex>& lock, Tier tier, std::uint32_t wanted, BlockId block) {
  if (transfers_in_flight == 0 && queued_releases == 0) {
    const Frames& f = frames(tier);
    const std::uint64_t needed = std::uint64_t{wanted} * options.frame_bytes;
    const std::uint64_t available = std::uint64_t{f.free_count()} * options.frame_bytes;
    throw BudgetError(
        fmt::format("No room in {} memory for {}: {} wanted, {} free of {}, {} in use and {} of workspace, and nothing "
                    "can leave{}. A larger {} budget is needed.",
                    name_of(tier), block.valid() ? at(block).spec.name : "workspace", format_size(needed),
                    format_size(available), format_size(std::uint64_t{f.count()} * options.frame_bytes),
                    format_size(std::uint64_t{f.used_count()} * options.frame_bytes),
                    format_size(std::uint64_t{f.count() - f.limit()} * options.frame_bytes),
                    store == nullptr ? " (there is no store)" : "", name_of(tier)),
        needed, available);
  }
  const WaitNote note(options.timeline, {.block = block, .cause = WaitCause::room, .tier = tier});
  changed.wait(lock);
}

}  // namespace transload
