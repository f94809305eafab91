// Moving bytes: NVMe reads and writes through the store, copies between device and host on their streams.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/transfer.h"

namespace transload {

namespace {

/// The error of a copy, with the block's name; `cause` may be null.
std::exception_ptr failed_copy(const std::string& block, const std::exception_ptr& cause) {
  try {
    if (cause) std::rethrow_exception(cause);
  } catch (const std::exception& e) {
    return std::make_exception_ptr(Error(fmt::format("The copy of {} failed: {}", block, e.what())));
  }
  return std::make_exception_ptr(Error(fmt::format("The copy of {} was given up after an earlier error.", block)));
}

}  // namespace

/// The end of a copy; also where the stream skips its tasks because an earlier one failed.
struct Engine::Impl::CopyEnd {
  CopyEnd(Impl* e, Transfer* t) : engine(e), transfer(t) {}
  CopyEnd(CopyEnd&& o) noexcept : engine(o.engine), transfer(std::exchange(o.transfer, nullptr)) {}
  CopyEnd(const CopyEnd&) = delete;
  ~CopyEnd() {
    if (transfer == nullptr) return;
    transfer->copy_error = failed_copy(engine->at(transfer->block).spec.name, std::current_exception());
    (*this)();
  }
  void operator()() noexcept {
    Transfer& t = *std::exchange(transfer, nullptr);
    IoResult result;
    result.error = t.copy_error;
    result.begin_ns = t.times.begin_ns;
    result.busy_ns = t.times.end_ns - std::min(t.times.begin_ns, t.times.end_ns);
    engine->finished(t, result);
  }
  Impl* engine;
  Transfer* transfer;
};

Engine::Impl::Transfer* Engine::Impl::take_transfer(BlockId id, Link link, bool ahead) {
  if (idle_transfers.empty() || paused) return nullptr;
  Transfer* t = idle_transfers.back();
  idle_transfers.pop_back();
  t->block = id;
  t->link = link;
  t->version = at(id).version;
  t->ahead = ahead;
  ++in_flight[static_cast<int>(link)];
  ++transfers_in_flight;
  return t;
}

bool Engine::Impl::try_fetch(BlockId id, Tier tier, bool ahead) {
  Block& b = at(id);
  TRANSLOAD_CHECK(b.alive, "{} has no content to fetch", b.spec.name);
  if (tier == Tier::device) {
    if (valid(b, Tier::host)) return fetch_copy(id, Tier::host, ahead);
    try_fetch(id, Tier::host, ahead);
    return false;
  }
  if (valid(b, Tier::host)) return false;  // on its way
  if (valid(b, Tier::device)) return fetch_copy(id, Tier::device, ahead);
  return start_read(id, ahead);
}

bool Engine::Impl::start_read(BlockId id, bool ahead) {
  Block& b = at(id);
  TRANSLOAD_CHECK(b.stored(), "{}: version {} is nowhere (stored: {})", b.spec.name, b.version, b.stored_version);
  Copy& c = b.copy[index(Tier::host)];
  if (!b.slot.valid()) {  // zeros need no transfer
    if (!take_frames(id, Tier::host)) return false;
    BlockView(&frames(Tier::host).table(), c.first, b.spec.bytes).zero(0, b.spec.bytes);
    c.prefetched = ahead;
    c.drop = false;
    return true;
  }
  if (idle_transfers.empty() || paused || !take_frames(id, Tier::host)) return false;
  Transfer* t = take_transfer(id, Link::nvme_read, ahead);
  {
    const MemoryChange change(*this, b, Tier::host);
    c.arriving = true;
  }
  c.via = Lane::nvme_read;
  c.drop = false;
  c.prefetched = ahead;
  t->set_slices(BlockView(&frames(Tier::host).table(), c.first, b.spec.bytes));
  store->submit_read(b.slot, t->slices, b.checksum, b.spec.name.c_str(), t);
  return true;
}

bool Engine::Impl::start_write(BlockId id) {
  Block& b = at(id);
  if (store == nullptr || idle_transfers.empty() || paused) return false;
  SlotId slot = store->allocate(b.spec.bytes);
  if (!slot.valid() && b.slot.valid() && !b.stored()) {  // without second slots the old version's makes way
    count_slot(b, false);
    store->free(std::exchange(b.slot, SlotId()));
    slot = store->allocate(b.spec.bytes);
  }
  if (!slot.valid()) return false;
  Transfer* t = take_transfer(id, Link::nvme_write, false);
  count_use(Tier::nvme, MemoryKind::in_flight, b.spec.bytes, true);
  Copy& c = b.copy[index(Tier::host)];
  ++c.readers;
  t->slot = slot;
  t->set_slices(BlockView(&frames(Tier::host).table(), c.first, b.spec.bytes));
  store->submit_write(slot, t->slices, b.spec.name.c_str(), t);
  return true;
}

bool Engine::Impl::fetch_copy(BlockId id, Tier from, bool ahead) {
  if (!start_copy(id, from, ahead)) return false;
  at(id).copy[1 - index(from)].drop = false;
  return true;
}

bool Engine::Impl::start_copy(BlockId id, Tier from, bool ahead) {
  Block& b = at(id);
  const Tier to = from == Tier::host ? Tier::device : Tier::host;
  Copy& source = b.copy[index(from)];
  if (source.writer || idle_transfers.empty() || paused || !take_frames(id, to)) return false;
  Copy& target = b.copy[index(to)];
  Transfer* t = take_transfer(id, from == Tier::host ? Link::host_to_device : Link::device_to_host, ahead);
  ++source.readers;
  {
    const MemoryChange change(*this, b, to);
    target.arriving = true;
  }
  target.via = static_cast<Lane>(t->link);
  target.prefetched = ahead;
  t->from = BlockView(&frames(from).table(), source.first, b.spec.bytes);
  t->to = BlockView(&frames(to).table(), target.first, b.spec.bytes);
  const Event source_ready = source.arriving ? Event{&source.arrivals, source.arrivals.load() + 1} : Event{};
  Stream& stream = *copy_streams[from == Tier::host ? 0 : 1];
  t->copy_error = nullptr;
  t->times = {};
  stream.wait(source_ready);
  stream.launch_timed(
      [this, t, &stream] {
        try {
          options.device->copy(t->from, t->to, stream);
        } catch (...) {
          t->copy_error = failed_copy(at(t->block).spec.name, std::current_exception());
        }
      },
      &t->times, CopyEnd(this, t));
  return true;
}

void Engine::Impl::finished(Transfer& t, const IoResult& result) noexcept {
  std::lock_guard lock(mutex);
  Block& b = at(t.block);
  LinkCounters& link = counters.link[static_cast<int>(t.link)];
  // Copies of a stream follow one another; their times are rounded, or those of the host around the issue of the work.
  const bool copied = t.link == Link::host_to_device || t.link == Link::device_to_host;
  std::uint64_t& until_ns = copied_until_ns[static_cast<int>(t.link)];
  const std::uint64_t end_ns = std::max(result.begin_ns + result.busy_ns, until_ns);
  const std::uint64_t begin_ns = std::max(result.begin_ns, until_ns);  // 0 for the links of NVMe
  if (copied) until_ns = end_ns;
  link.bytes += b.spec.bytes;
  link.busy_ns += end_ns - begin_ns;
  ++link.transfers;
  if (!result.error) note_transfer(t, begin_ns, end_ns);
  --in_flight[static_cast<int>(t.link)];
  --transfers_in_flight;
  if (result.error) fail(result.error);
  const auto arrived = [&](Tier tier) {
    Copy& c = b.copy[index(tier)];
    {
      const MemoryChange change(*this, b, tier);
      c.arriving = false;
    }
    c.arrivals.fetch_add(1, std::memory_order_release);
    c.arrivals.notify_all();
    if (c.drop && !error)
      try_drop(t.block, tier);  // what the device made may have left already, as far as the plan goes
  };
  const auto source_done = [&](Tier tier) {
    Copy& c = b.copy[index(tier)];
    --c.readers;
    if (c.leaving) {
      {
        const MemoryChange change(*this, b, tier);
        c.leaving = false;
      }
      leaving_frames[index(tier)] -= b.frames;
      if (!c.idle()) c.drop = false;  // somebody uses it again
    }
    if (c.drop && !error) try_drop(t.block, tier);
  };
  switch (t.link) {
    case Link::nvme_read:
      arrived(Tier::host);
      break;
    case Link::nvme_write:
      count_use(Tier::nvme, MemoryKind::in_flight, b.spec.bytes, false);
      if (!result.error) {
        count_slot(b, false);
        if (b.slot.valid()) store->free(b.slot);
        b.slot = t.slot;
        count_slot(b, true);
        b.stored_version = t.version;
        b.checksum = result.checksum;
      }
      source_done(Tier::host);
      break;
    case Link::host_to_device:
      arrived(Tier::device);
      source_done(Tier::host);
      break;
    case Link::device_to_host:
      arrived(Tier::host);
      source_done(Tier::device);
      break;
  }
  idle_transfers.push_back(&t);
  pump();
  note_memory();
  changed.notify_all();
}

void Engine::Impl::fail(std::exception_ptr first) {
  if (!error) error = first;
}

void Engine::Impl::rethrow() const {
  if (error) std::rethrow_exception(error);
}

}  // namespace transload
