// Schedule: a plan made ready for the engine: where we are in the traced step, what the plan wants at each tick, when a
// block is used next. Time is absolute: step × accesses a step + tick. Guarded by the engine's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/trace_types.h"
#include "plan/room_tree.h"

namespace transload {

inline constexpr std::uint32_t kNoTick = UINT32_MAX;

class Schedule {
 public:
  void set(const Trace& trace, const Plan& plan, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes);
  void clear();
  bool active() const { return !accesses_.empty(); }
  bool in_step() const { return in_step_; }
  /// The first step of this plan: memory may hold what another one left.
  bool settling() const { return settling_; }

  void begin_step();
  void end_step();
  std::uint64_t now() const { return step_ * accesses_.size() + tick_; }

  /// The tick of this access, or kNoTick when the trace has none like it ahead in this step. `skipped` receives the
  /// ticks passed over. Differences are counted.
  struct Match {
    std::uint32_t tick = kNoTick;
    std::uint32_t skipped_from = 0, skipped_to = 0;
  };
  Match advance(BlockId block, Tier tier, AccessKind kind);
  std::uint64_t deviations() const { return deviations_; }

  struct Drop {
    BlockId block;
    Tier tier;
    bool write;  ///< as Plan::Drop
  };
  /// Of the plan in force; a tick of an earlier, longer one has none.
  std::span<const Drop> drops_after(std::uint32_t tick) const;
  /// The block's next access after this device access is the host's: its content may leave at once.
  bool leaves_device_after(std::uint32_t tick) const { return tick < push_.size() && push_[tick]; }
  /// Host room for what leaves the device once the access is over.
  std::uint32_t frames_down_after(std::uint32_t tick) const { return tick < down_.size() ? down_[tick] : 0; }

  /// Absolute time of the first access of a block at or below a tier (host: device accesses count, they come through
  /// it) that is not before now; UINT64_MAX: never.
  std::uint64_t next_use(BlockId block, Tier tier) const;
  /// The plan fetches the block for the access at that time: until then it counts on no copy in the tier.
  bool fetched_for(Tier tier, std::uint64_t time) const;
  /// Whose copy leaves a tier first, the highest: what the plan fetches anew before its next use goes before what it
  /// counts on; of each the farthest next use. Below UINT64_MAX.
  std::uint64_t leaving_score(BlockId block, Tier tier) const;

  struct Fetch {
    BlockId block;
    std::uint64_t need = 0;             ///< absolute
    std::uint64_t not_before = 0;       ///< absolute; until then the plan drops the block, or the other tier changes it
    std::uint64_t reserved_frames = 0;  ///< room that blocks made anew before `need` will take
    std::uint64_t workspace_frames = 0;  ///< the most that workspace takes until `need`
    bool kept = false;  ///< while settling: the plan counts on a copy, which another plan may have dropped
  };
  /// The next fetch of a tier that is not too late; false: none within one step from now.
  bool peek_fetch(Tier tier, Fetch& fetch);
  void pop_fetch(Tier tier);
  /// The fetches from now on are looked at again.
  void rewind(Tier tier);

 private:
  struct Planned {
    BlockId block;
    std::uint32_t need = 0;               ///< 0 … 2n
    std::int64_t not_before = INT64_MIN;  ///< relative to the same step
    bool kept = false;
  };
  void index_uses(const Trace& trace, std::size_t blocks);
  void index_drops(const Plan& plan);
  void index_fetches(const Plan& plan);
  void add_kept(std::vector<Planned>& list, int tier) const;
  void index_writes(const Plan& plan, const std::vector<BlockSpec>& blocks, std::uint64_t frame_bytes);
  void index_workspace(const Trace& trace, std::uint64_t frame_bytes);
  std::uint64_t writes_until(Tier tier, std::uint64_t time) const;
  std::uint64_t most_workspace(Tier tier, std::uint64_t need) const;

  std::vector<Access> accesses_;
  std::vector<std::vector<std::uint32_t>> uses_[2];  ///< ticks by block, ascending
  std::vector<Drop> drops_;
  std::vector<std::uint32_t> drops_begin_;  ///< by tick, n + 1 entries
  std::vector<bool> push_;
  std::vector<std::uint32_t> down_;  ///< frames by tick
  std::vector<Planned> fetches_[2];
  std::vector<bool> fetched_[2];                 ///< by tick
  std::vector<std::uint64_t> writes_[2];         ///< prefix sums of frames by tick, n + 1 entries
  std::optional<RoomTree> beside_workspace_[2];  ///< frames, of kAnyRoom, by tick
  std::size_t cursor_[2] = {0, 0};
  std::uint64_t cursor_step_[2] = {0, 0};
  std::uint64_t step_ = 0;
  std::uint32_t tick_ = 0;
  bool in_step_ = false, settling_ = false, once_ = false;
  std::uint64_t deviations_ = 0;
};

}  // namespace transload
