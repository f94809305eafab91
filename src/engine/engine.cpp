#include "engine/engine.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "engine/transfer.h"

namespace transload {

namespace {
constexpr int kTransfers = 12 * kLinks;  ///< in flight at most; queues behind are bounded by it
}

Engine::Impl::Impl(std::vector<BlockSpec> specs, const EngineOptions& options_in, Store* store_in)
    : options(options_in), store(store_in), blocks(specs.size()) {
  TRANSLOAD_CHECK(options.device_bytes == 0 || options.device != nullptr, "a device tier of {} bytes without a device",
                  options.device_bytes);
  TRANSLOAD_CHECK(options.frame_bytes >= 4096 && options.frame_bytes % 4096 == 0, "frames of {} bytes",
                  options.frame_bytes);
  std::uint32_t most_frames = 1;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    blocks[i].frames = static_cast<std::uint32_t>(ceil_div(specs[i].bytes, options.frame_bytes));
    most_frames = std::max(most_frames, blocks[i].frames);
    blocks[i].use = use_of(specs[i].plane);
    blocks[i].spec = std::move(specs[i]);
  }
  const std::uint64_t bytes[2] = {options.device_bytes, options.host_bytes};
  for (int t = 0; t < 2; ++t) {
    const std::uint64_t whole = bytes[t] / options.frame_bytes * options.frame_bytes;
    if (whole == 0) continue;
    memory[t] = t == index(Tier::device)    ? options.device->memory(whole)
                : options.device != nullptr ? options.device->host_memory(whole, options.populate)
                                            : make_host_memory(whole, options.populate);
    frames_of[t] = std::make_unique<Frames>(memory[t]->base(), whole, options.frame_bytes);
  }
  TRANSLOAD_CHECK(frames_of[1] != nullptr, "a host budget of {} bytes", options.host_bytes);
  for (int i = 0; i < kTransfers; ++i) {
    transfers.push_back(std::make_unique<Transfer>(*this, most_frames));
    idle_transfers.push_back(transfers.back().get());
  }
  pending_drops.reserve(2 * blocks.size());
  if (frames_of[0])
    // A copy is two tasks, and the last one of an ended copy may begin the next: a full ring would wait for itself.
    for (auto& stream : copy_streams) stream = options.device->make_stream(4 * kTransfers);
}

Engine::Impl::~Impl() {
  std::unique_lock lock(mutex);
  paused = true;
  changed.wait(lock, [&] { return transfers_in_flight == 0 && queued_releases == 0; });
}

void Engine::Impl::write_all(std::unique_lock<std::mutex>& lock) {
  for (bool again = true; again;) {
    again = false;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block& b = blocks[i];
      if (!b.spec.durable || b.stored()) continue;
      TRANSLOAD_CHECK(b.alive, "{} has no content to commit", b.spec.name);
      again = true;
      while (!b.stored() && !b.copy[index(Tier::host)].leaving) {
        rethrow();
        const auto before = room_state(Tier::host);
        if (write_one(BlockId(i))) break;
        if (room_state(Tier::host) == before) wait(lock, Tier::host, b.frames, BlockId(i));
      }
    }
    while (transfers_in_flight > 0) changed.wait(lock);
    rethrow();
  }
}

bool Engine::Impl::write_one(BlockId id) {
  Block& b = at(id);
  const Copy& c = b.copy[index(Tier::host)];
  if (valid(b, Tier::host) && !c.arriving) return c.idle() && start_write(id);
  if (!valid(b, Tier::host) && !try_fetch(id, Tier::host, false)) make_room(Tier::host, b.frames, id);
  return false;
}

Engine::Engine(std::vector<BlockSpec> blocks, const EngineOptions& options, Store* store)
    : impl_(std::make_unique<Impl>(std::move(blocks), options, store)) {}

Engine::~Engine() = default;

Pin Engine::pin(BlockId block, Tier tier, AccessKind kind) { return impl_->pin(block, tier, kind); }

void Engine::unpin(Pin pin, Stream& stream) { impl_->unpin(pin, stream); }

std::byte* Engine::workspace(Tier tier, std::uint64_t bytes) { return impl_->workspace(tier, bytes); }

void Engine::adopt(std::span<const StoredBlock> stored) {
  std::lock_guard lock(impl_->mutex);
  TRANSLOAD_CHECK(stored.size() <= impl_->blocks.size(), "{} stored blocks, {} blocks", stored.size(),
                  impl_->blocks.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    Block& b = impl_->blocks[i];
    if (!b.spec.durable) continue;
    TRANSLOAD_CHECK(stored[i].bytes == b.spec.bytes, "{}: {} bytes stored, {} expected", b.spec.name, stored[i].bytes,
                    b.spec.bytes);
    b.alive = true;
    b.version = b.stored_version = stored[i].version;
    b.slot = stored[i].slot;
    impl_->count_slot(b, true);
    b.checksum = stored[i].checksum;
  }
}

void Engine::set_zero(BlockId block) {
  std::lock_guard lock(impl_->mutex);
  Block& b = impl_->at(block);
  TRANSLOAD_CHECK(!b.alive && !b.slot.valid(), "{} has content", b.spec.name);
  b.alive = true;
  b.stored_version = ++b.version;
}

void Engine::set_plan(const Trace& trace, Plan plan) {
  std::lock_guard lock(impl_->mutex);
  std::vector<BlockSpec> specs;
  for (const Block& b : impl_->blocks) specs.push_back(b.spec);
  impl_->schedule.set(trace, plan, specs, impl_->options.frame_bytes);
}

void Engine::clear_plan() {
  std::lock_guard lock(impl_->mutex);
  impl_->schedule.clear();
}

void Engine::begin_step() {
  std::lock_guard lock(impl_->mutex);
  impl_->schedule.begin_step();
  impl_->pump();
}

void Engine::end_step() {
  std::lock_guard lock(impl_->mutex);
  impl_->schedule.end_step();
  impl_->pump();
}

void Engine::commit(const std::string& metadata, const CommitStore& commit_store) {
  std::unique_lock lock(impl_->mutex);
  TRANSLOAD_CHECK(impl_->store != nullptr, "a commit without a store");
  impl_->rethrow();
  ++impl_->demand;
  struct Undo {
    Impl& impl;
    ~Undo() {
      --impl.demand;
      impl.paused = false;
    }
  } undo{*impl_};
  impl_->changed.wait(lock, [&] { return impl_->queued_releases == 0; });
  impl_->write_all(lock);
  impl_->paused = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    if (commit_store)
      commit_store(metadata, stored());
    else
      impl_->store->commit(metadata, stored());
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error) {
    impl_->fail(error);
    impl_->rethrow();
  }
}

std::vector<StoredBlock> Engine::stored() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<StoredBlock> all(impl_->blocks.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Block& b = impl_->blocks[i];
    if (!b.spec.durable) continue;
    all[i] = {b.slot, b.stored_version, b.spec.bytes, b.slot.valid() ? b.checksum : 0};
  }
  return all;
}

EngineCounters Engine::Impl::counted() const {
  EngineCounters c = counters;
  c.deviations = schedule.deviations();
  return c;
}

EngineCounters Engine::counters() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->counted();
}

void Engine::rethrow_if_failed() const {
  std::lock_guard lock(impl_->mutex);
  impl_->rethrow();
}

}  // namespace transload
