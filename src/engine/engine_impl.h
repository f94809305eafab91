// The engine's state. Everything here is guarded by one mutex; nothing blocks while holding it.
//
// A copy (block × device or host) is one of
//   none      first == kNoFrame
//   arriving  frames taken, a transfer writes them; readers may pin it and wait for its event
//   present   the bytes are there
// and it is valid iff its version is the block's. The stored copy is valid iff stored_version is the block's version;
// a valid stored copy without a slot is zeros. Content that is alive has at least one valid copy at every instant.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "engine/schedule.h"
#include "offload/device.h"
#include "offload/frames.h"

namespace transload {

struct Copy {
  std::uint64_t version = 0;
  std::uint32_t first = kNoFrame;
  std::uint32_t readers = 0;  ///< read pins and transfers that read these bytes
  bool writer = false;        ///< pinned by write, update or consume
  bool arriving = false;
  bool leaving = false;     ///< being written down; leaves when done unless somebody pins it
  bool drop = false;        ///< the plan wants it gone, or gone as soon as it has come; a pin clears this
  bool write = false;       ///< with drop: the store gets the version although the device has it too
  bool prefetched = false;  ///< fetched ahead and not pinned since
  Lane via = Lane::issue;   ///< the link that brings or brought it
  std::uint64_t last_use = 0;
  std::atomic<std::uint32_t> arrivals{0};

  bool idle() const { return first != kNoFrame && readers == 0 && !writer && !arriving; }
};

struct Block {
  BlockSpec spec;
  std::uint32_t frames = 0;
  MemoryKind use = MemoryKind::other;
  std::uint64_t version = 0;
  bool alive = false;
  SlotId slot;
  std::uint64_t stored_version = 0;
  std::uint64_t checksum = 0;
  Copy copy[2];  ///< device, host

  bool stored() const { return alive && stored_version == version; }
};

struct Engine::Impl {
  struct Transfer;
  struct CopyEnd;
  struct Held;
  struct ReleaseTask;
  class Demand;

  Impl(std::vector<BlockSpec> specs, const EngineOptions& options_in, Store* store_in);
  ~Impl();

  // pins.cpp
  Pin pin(BlockId id, Tier tier, AccessKind kind);
  void unpin(const Pin& pin, Stream& stream);
  void acquire(std::unique_lock<std::mutex>& lock, BlockId id, Tier tier, AccessKind kind);
  void expect_leaving(Held& held);
  void release(const Held& held, bool queued) noexcept;
  bool conflicts(const Block& b, Tier tier, AccessKind kind) const;
  void begin_version(Block& b, Tier tier);
  void kill(Block& b);
  Found count_pin(const Copy& copy, bool is_valid);
  std::byte* workspace(Tier tier, std::uint64_t bytes);
  void clear_workspace_room(std::unique_lock<std::mutex>& lock, Tier tier);
  void move_frame(Tier tier, std::byte* to, const std::byte* from) const;

  // engine.cpp
  void write_all(std::unique_lock<std::mutex>& lock);
  bool write_one(BlockId id);

  // room.cpp
  bool valid(const Block& b, Tier tier) const;
  bool take_frames(BlockId id, Tier tier);
  void release_frames(Block& b, Tier tier);
  bool make_room(Tier tier, std::uint32_t frames, BlockId protect);
  BlockId choose_victim(Tier tier, BlockId protect) const;
  bool evict(BlockId id, Tier tier);
  bool has_other_copy(const Block& b, Tier tier) const;
  void try_drop(BlockId id, Tier tier);
  std::uint32_t workspace_frames(Tier tier) const;
  void note_peak(Tier tier);
  /// What waiting can change; unchanged after an attempt means: wait.
  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, int> room_state(Tier tier) const;
  /// `block`: for the record; invalid: workspace.
  void wait(std::unique_lock<std::mutex>& lock, Tier tier, std::uint32_t frames, BlockId block);

  // transfers.cpp
  bool try_fetch(BlockId id, Tier tier, bool ahead);
  bool start_read(BlockId id, bool ahead);
  bool start_write(BlockId id);
  /// A copy that somebody wants where it comes to.
  bool fetch_copy(BlockId id, Tier from, bool ahead);
  bool start_copy(BlockId id, Tier from, bool ahead);
  Transfer* take_transfer(BlockId id, Link link, bool ahead);
  void finished(Transfer& transfer, const IoResult& result) noexcept;
  void fail(std::exception_ptr error);
  void rethrow() const;

  // memory_use.cpp
  class MemoryChange;
  void count_copy(const Block& b, Tier tier, bool add);
  void count_slot(const Block& b, bool add);
  void count_use(Tier tier, MemoryKind use, std::uint64_t bytes, bool add);
  void note_memory();
  void note_transfer(const Transfer& transfer, std::uint64_t begin_ns, std::uint64_t end_ns);
  EngineCounters counted() const;

  // pump.cpp
  void pump();
  void pump_drops();
  void pump_fetches(Tier tier);
  bool comes_otherwise(const Block& b, Tier tier) const;
  bool has_room_ahead(const Block& b, Tier tier, const Schedule::Fetch& fetch) const;
  void run_drops(std::uint32_t tick);

  Block& at(BlockId id) { return blocks[id.value]; }
  const Block& at(BlockId id) const { return blocks[id.value]; }
  static int index(Tier t) { return static_cast<int>(t); }
  Copy& copy(BlockId id, Tier t) { return blocks[id.value].copy[index(t)]; }
  Frames& frames(Tier t) const { return *frames_of[index(t)]; }

  const EngineOptions options;
  Store* const store;
  std::vector<Block> blocks;
  std::unique_ptr<TierMemory> memory[2];
  std::unique_ptr<Frames> frames_of[2];
  std::uint32_t leaving_frames[2] = {0, 0};  ///< will be free when their transfers end
  std::uint32_t due_frames[2] = {0, 0};      ///< will be free at releases that wait in streams
  std::uint32_t owed_frames = 0;             ///< of the host: for what leaves the device when pins are given back
  std::vector<std::unique_ptr<Transfer>> transfers;
  std::vector<Transfer*> idle_transfers;
  int in_flight[kLinks] = {};
  int transfers_in_flight = 0;
  std::uint32_t queued_releases = 0;  ///< unpins waiting in streams
  int demand = 0;                     ///< the issuing thread waits for room: prefetches yield
  bool paused = false;                ///< during a commit nothing starts by itself
  Schedule schedule;
  std::vector<std::pair<BlockId, Tier>> pending_drops;
  std::uint64_t clock = 0;
  EngineCounters counters;
  MemoryBytes in_use[kTiers] = {};  ///< device and host without workspace; nvme: the current versions in slots
  bool in_use_changed[kTiers] = {};
  std::uint64_t copied_until_ns[kLinks] = {};  ///< end of the last copy: a stream's copies follow one another
  std::exception_ptr error;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<Stream> copy_streams[2];  ///< host→device, device→host; last: they end first
};

/// A copy's state changes in this scope: its bytes are counted for what they are before and after.
class Engine::Impl::MemoryChange {
 public:
  MemoryChange(Impl& engine, const Block& block, Tier tier) : engine_(engine), block_(block), tier_(tier) {
    engine_.count_copy(block_, tier_, false);
  }
  ~MemoryChange() { engine_.count_copy(block_, tier_, true); }
  MemoryChange(const MemoryChange&) = delete;

 private:
  Impl& engine_;
  const Block& block_;
  Tier tier_;
};

}  // namespace transload
