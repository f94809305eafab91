// Pins: the right to use a block where it is.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "engine/transfer.h"

namespace transload {

/// While the issuing thread looks for room, prefetches yield; its waiting is timed.
class Engine::Impl::Demand {
 public:
  explicit Demand(Impl& e) : engine_(e), start_(std::chrono::steady_clock::now()) { ++engine_.demand; }
  ~Demand() {
    --engine_.demand;
    engine_.counters.wait_ns +=
        static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count());
  }
  Demand(const Demand&) = delete;

 private:
  Impl& engine_;
  std::chrono::steady_clock::time_point start_;
};

struct Engine::Impl::Held {
  BlockId block;
  Tier tier;
  AccessKind kind;
  std::uint32_t tick;
  std::uint32_t owed_frames;             ///< as the pin's
  std::uint32_t due_frames[2] = {0, 0};  ///< of copies that leave then, by plan or because their content ends
};

/// Gives a pin back from a stream; also when the stream skips its tasks after an error.
struct Engine::Impl::ReleaseTask {
  ReleaseTask(Impl* e, Held h) : engine(e), held(h) {}
  ReleaseTask(ReleaseTask&& o) noexcept : engine(std::exchange(o.engine, nullptr)), held(o.held) {}
  ReleaseTask(const ReleaseTask&) = delete;
  ~ReleaseTask() { (*this)(); }
  void operator()() {
    if (Impl* e = std::exchange(engine, nullptr)) e->release(held, true);
  }
  Impl* engine;
  Held held;
};

bool Engine::Impl::conflicts(const Block& b, Tier tier, AccessKind kind) const {
  const Copy& here = b.copy[index(tier)];
  const Copy& there = b.copy[1 - index(tier)];
  if (here.writer || there.writer) return true;
  if (kind == AccessKind::read) return false;
  if (kind == AccessKind::write && here.arriving) return true;
  return here.readers > 0 || there.readers > 0 || there.arriving;
}

void Engine::Impl::begin_version(Block& b, Tier tier) {
  b.alive = true;
  ++b.version;
  b.copy[index(tier)].version = b.version;
  const Tier other = tier == Tier::host ? Tier::device : Tier::host;
  if (b.copy[index(other)].idle()) release_frames(b, other);
}

void Engine::Impl::kill(Block& b) {
  b.alive = false;
  for (const Tier t : {Tier::device, Tier::host})
    if (b.copy[index(t)].idle()) release_frames(b, t);
  if (!b.spec.durable && b.slot.valid()) {
    count_slot(b, false);
    store->free(b.slot);
    b.slot = {};
  }
}

Found Engine::Impl::count_pin(const Copy& c, bool is_valid) {
  const Found found = !is_valid ? Found::demand : c.arriving ? Found::late : Found::hit;
  ++(found == Found::demand ? counters.demand : found == Found::late ? counters.late : counters.hits);
  return found;
}

void Engine::Impl::acquire(std::unique_lock<std::mutex>& lock, BlockId id, Tier tier, AccessKind kind) {
  Block& b = at(id);
  for (;;) {
    rethrow();
    if (conflicts(b, tier, kind)) {
      TRANSLOAD_CHECK(transfers_in_flight > 0 || queued_releases > 0, "{} is pinned twice by the issuing thread",
                      b.spec.name);
      const WaitNote note(options.timeline, {.block = id, .cause = WaitCause::use, .tier = tier});
      changed.wait(lock);
      continue;
    }
    const auto before = room_state(tier);
    if (kind == AccessKind::write) {
      if (take_frames(id, tier)) return;
    } else {
      TRANSLOAD_CHECK(b.alive, "{} is wanted but has no content", b.spec.name);
      if (valid(b, tier) || try_fetch(id, tier, false)) return;
    }
    make_room(tier, b.frames, id);
    if (tier == Tier::device && kind != AccessKind::write && !valid(b, Tier::host)) make_room(Tier::host, b.frames, id);
    if (room_state(tier) == before) wait(lock, tier, b.frames, id);
  }
}

Pin Engine::Impl::pin(BlockId id, Tier tier, AccessKind kind) {
  std::unique_lock lock(mutex);
  Block& b = at(id);
  Copy& c = b.copy[index(tier)];
  TRANSLOAD_CHECK(frames_of[index(tier)] != nullptr, "{} pinned in {}, a tier that is not there", b.spec.name,
                  name_of(tier));
  Pin pin;
  pin.tick = kNoTick;
  if (schedule.in_step()) {
    const Schedule::Match match = schedule.advance(id, tier, kind);
    pin.tick = match.tick;
    for (std::uint32_t t = match.skipped_from; t < match.skipped_to; ++t) run_drops(t);
  }
  if (needs_content(kind)) pin.found = count_pin(c, valid(b, tier));
  {
    const Demand waiting(*this);
    acquire(lock, id, tier, kind);
  }
  if (pin.tick != kNoTick) pin.owed_frames = schedule.frames_down_after(pin.tick);
  owed_frames += pin.owed_frames;
  c.drop = false;
  c.prefetched = false;
  c.last_use = ++clock;
  pin.view = BlockView(&frames(tier).table(), c.first, b.spec.bytes);
  pin.ready = c.arriving ? Event{&c.arrivals, c.arrivals.load() + 1, id, c.via, tier} : Event{};
  pin.block = id;
  pin.tier = tier;
  pin.kind = kind;
  if (kind == AccessKind::read)
    ++c.readers;
  else
    c.writer = true;
  if (makes_version(kind)) begin_version(b, tier);
  pump();
  note_memory();
  return pin;
}

void Engine::Impl::unpin(const Pin& pin, Stream& stream) {
  TRANSLOAD_CHECK(pin.held(), "a pin is given back twice");
  Held held{pin.block, pin.tier, pin.kind, pin.tick, pin.owed_frames};
  if (stream.is_inline()) {
    release(held, false);
    return;
  }
  {
    std::lock_guard lock(mutex);
    ++queued_releases;
    expect_leaving(held);
  }
  stream.after(ReleaseTask(this, held));
}

void Engine::Impl::expect_leaving(Held& held) {
  const auto expect = [&](BlockId id, Tier tier) {
    if (copy(id, tier).first != kNoFrame) held.due_frames[index(tier)] += at(id).frames;
  };
  if (held.kind == AccessKind::consume)
    for (const Tier tier : {Tier::device, Tier::host}) expect(held.block, tier);
  if (held.tick != kNoTick && schedule.active() && !options.lru)
    for (const Schedule::Drop& d : schedule.drops_after(held.tick)) expect(d.block, d.tier);
  for (int t = 0; t < 2; ++t) due_frames[t] += held.due_frames[t];
}

void Engine::Impl::release(const Held& held, bool queued) noexcept {
  std::lock_guard lock(mutex);
  if (queued) --queued_releases;
  for (int t = 0; t < 2; ++t) due_frames[t] -= held.due_frames[t];
  owed_frames -= held.owed_frames;
  Block& b = at(held.block);
  Copy& c = copy(held.block, held.tier);
  if (held.kind == AccessKind::read) {
    TRANSLOAD_CHECK(c.readers > 0, "{} is not pinned", b.spec.name);
    --c.readers;
  } else {
    TRANSLOAD_CHECK(c.writer, "{} is not pinned for writing", b.spec.name);
    c.writer = false;
  }
  if (held.kind == AccessKind::consume) kill(b);
  if (held.tick != kNoTick && !error && schedule.active() && !options.lru) {
    if (held.tier == Tier::device && schedule.leaves_device_after(held.tick) && valid(b, Tier::device) &&
        !valid(b, Tier::host))
      start_copy(held.block, Tier::device, false);
    run_drops(held.tick);
  }
  if (c.drop && !error) try_drop(held.block, held.tier);
  pump();
  note_memory();
  changed.notify_all();
}

std::byte* Engine::Impl::workspace(Tier tier, std::uint64_t bytes) {
  std::unique_lock lock(mutex);
  Frames& f = frames(tier);
  const std::uint64_t wanted = ceil_div(bytes, options.frame_bytes);
  if (wanted > f.count())
    throw BudgetError(fmt::format("A workspace of {} does not fit in {} memory of {}.", format_size(bytes),
                                  name_of(tier), format_size(std::uint64_t{f.count()} * options.frame_bytes)),
                      bytes, std::uint64_t{f.count()} * options.frame_bytes);
  f.set_limit(f.count() - static_cast<std::uint32_t>(wanted));
  note_peak(tier);
  {
    const Demand waiting(*this);
    clear_workspace_room(lock, tier);
  }
  pump();
  in_use_changed[index(tier)] = true;
  note_memory();
  changed.notify_all();
  return bytes == 0 ? nullptr : memory[index(tier)]->base() + std::uint64_t{f.limit()} * options.frame_bytes;
}

void Engine::Impl::move_frame(Tier tier, std::byte* to, const std::byte* from) const {
  if (tier == Tier::device)
    options.device->move(to, from, options.frame_bytes);
  else
    std::memcpy(to, from, options.frame_bytes);
}

void Engine::Impl::clear_workspace_room(std::unique_lock<std::mutex>& lock, Tier tier) {
  Frames& f = frames(tier);
  for (std::uint32_t frame; (frame = f.used_above_limit()) != kNoFrame;) {
    rethrow();
    const BlockId owner(f.owner(frame));
    Copy& c = copy(owner, tier);
    if (c.idle() && f.free_count() > 0) {
      const std::uint32_t target = f.relocate(&c.first, frame);
      move_frame(tier, f.table().frame(target), f.table().frame(frame));
      counters.relocated_bytes += options.frame_bytes;
      continue;
    }
    const auto before = room_state(tier);
    make_room(tier, 1, BlockId());
    if (room_state(tier) == before) wait(lock, tier, 1, BlockId());
  }
}

}  // namespace transload
