// Engine: the only owner of "where is it now". Block states, versions, frames; pins; demand fetches; the plan's
// fetches and drops; commits. See engine.cpp for the state of a copy and the rules.
//
// Invariants
//  - A copy is valid iff its version is the block's current version. There is no other flag of validity.
//  - Bytes of frames and workspace of a tier never exceed its budget: the arena is taken once, at construction.
//  - A pinned copy is neither moved nor dropped. A copy that is the only valid one is never dropped.
//  - The plan is a hint: any sequence of pins is correct without it.
// Threading: pin, workspace, commit… by the issuing thread; releases and completions from streams and the store's
// threads. One mutex; nothing blocks while holding it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "engine/block_access.h"
#include "offload/device.h"
#include "offload/store.h"

namespace transload {

struct EngineOptions {
  std::uint64_t device_bytes = 0;  ///< 0: no device tier
  std::uint64_t host_bytes = 0;
  std::uint64_t frame_bytes = 0;
  Device* device = nullptr;      ///< of the device tier; outlives the engine
  bool lru = false;              ///< --policy lru: no plan, least recently used leaves
  bool populate = true;          ///< touch the arenas' pages at construction
  Timeline* timeline = nullptr;  ///< for transfers, waits and memory by use; outlives the engine
};

struct LinkCounters {
  std::uint64_t bytes = 0, transfers = 0, busy_ns = 0;
};

struct EngineCounters {
  LinkCounters link[kLinks];
  std::uint64_t peak_bytes[2] = {0, 0};  ///< frames + workspace in use, device and host
  std::uint64_t hits = 0, late = 0, demand = 0,
                wasted = 0;      ///< pins: ready, prefetch under way, fetched on demand; prefetches dropped unused
  std::uint64_t deviations = 0;  ///< accesses that differ from the trace
  std::uint64_t wait_ns = 0;     ///< the issuing thread waited for room or content
  std::uint64_t relocated_bytes = 0;
};

class Engine final : public BlockAccess {
 public:
  /// `store` may be null (--nvme-capacity 0). Blocks begin without content.
  Engine(std::vector<BlockSpec> blocks, const EngineOptions& options, Store* store);
  ~Engine() override;

  Pin pin(BlockId block, Tier tier, AccessKind kind) override;
  void unpin(Pin pin, Stream& stream) override;
  std::byte* workspace(Tier tier, std::uint64_t bytes) override;
  void begin_backward() override {}
  bool dry() const override { return false; }

  /// After opening a store: durable blocks have these contents there.
  void adopt(std::span<const StoredBlock> stored);
  /// Declares a block's content to be zeros without writing them (moments before the first step).
  void set_zero(BlockId block);

  /// Steady-state plan of a traced step; the trace is what live accesses are checked against.
  void set_plan(const Trace& trace, Plan plan);
  void clear_plan();
  /// A step of the planned kind begins (tick 0). Outside begin_step/end_step accesses are demand only.
  void begin_step();
  void end_step();

  /// Writes every durable block whose current version is not stored, then commits: by Store::commit, or by
  /// `commit_store` where the store commits together with others. Nothing is written meanwhile. No pin may be held.
  using CommitStore = std::function<void(const std::string& metadata, std::span<const StoredBlock> blocks)>;
  void commit(const std::string& metadata, const CommitStore& commit_store = {});
  /// Where a durable block's current content lies in the store; for checks after commit.
  std::vector<StoredBlock> stored() const;

  EngineCounters counters() const;
  /// The counters, and the timeline begins or ends at the same instant: what it holds is what they count.
  EngineCounters begin_timeline();
  EngineCounters end_timeline();
  void rethrow_if_failed() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
