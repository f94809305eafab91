// Memory by use, kept up to date at every change of a copy's state, and noted in the timeline.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/transfer.h"

namespace transload {

void Engine::Impl::count_copy(const Block& b, Tier tier, bool add) {
  const Copy& c = b.copy[index(tier)];
  if (c.first == kNoFrame) return;
  const MemoryKind use = c.arriving || c.leaving ? MemoryKind::in_flight : b.use;
  count_use(tier, use, b.spec.bytes, add);
  count_use(tier, MemoryKind::padding, b.frames * options.frame_bytes - b.spec.bytes, add);
}

void Engine::Impl::count_slot(const Block& b, bool add) {
  if (b.slot.valid()) count_use(Tier::nvme, b.use, b.spec.bytes, add);
}

void Engine::Impl::count_use(Tier tier, MemoryKind use, std::uint64_t bytes, bool add) {
  std::uint64_t& sum = in_use[index(tier)][static_cast<std::size_t>(use)];
  TRANSLOAD_CHECK(add || sum >= bytes, "{} bytes of {} leave {}, which holds {}", bytes, name_of(use), name_of(tier),
                  sum);
  sum = add ? sum + bytes : sum - bytes;
  in_use_changed[index(tier)] = true;
}

void Engine::Impl::note_memory() {
  if (options.timeline == nullptr || !options.timeline->on()) return;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    if (!std::exchange(in_use_changed[index(tier)], false)) continue;
    MemorySample sample{.at_ns = host_clock_ns(), .tier = tier, .used_bytes = 0, .bytes = in_use[index(tier)]};
    if (tier == Tier::nvme) {
      for (const std::uint64_t bytes : sample.bytes) sample.used_bytes += bytes;
    } else {
      const std::uint32_t workspace = workspace_frames(tier);
      sample.bytes[static_cast<std::size_t>(MemoryKind::workspace)] = workspace * options.frame_bytes;
      sample.used_bytes = std::uint64_t{frames(tier).used_count() + workspace} * options.frame_bytes;
    }
    options.timeline->add(sample);
  }
}

void Engine::Impl::note_transfer(const Transfer& t, std::uint64_t begin_ns, std::uint64_t end_ns) {
  if (options.timeline == nullptr) return;
  options.timeline->add(Span{.begin_ns = begin_ns,
                             .end_ns = end_ns,
                             .bytes = at(t.block).spec.bytes,
                             .block = t.block,
                             .lane = static_cast<Lane>(t.link),
                             .ahead = t.ahead});
}

EngineCounters Engine::begin_timeline() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->options.timeline != nullptr) impl_->options.timeline->begin();
  for (const Tier tier : {Tier::device, Tier::host})
    impl_->in_use_changed[Impl::index(tier)] = bool(impl_->frames_of[Impl::index(tier)]);
  impl_->in_use_changed[Impl::index(Tier::nvme)] = impl_->store != nullptr;
  impl_->note_memory();
  return impl_->counted();
}

EngineCounters Engine::end_timeline() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->options.timeline != nullptr) impl_->options.timeline->end();
  return impl_->counted();
}

}  // namespace transload
