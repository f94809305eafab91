// Frames: an arena cut into equal frames, given out to blocks; the top of the arena may be lent as workspace.
//
// Invariants: a frame is free, or owned by exactly one list; frames at or above limit() are never given out (they are
// or become workspace). A list is linked through next(); lowest free frames first, in one run where there is one.
// No threads; the engine's mutex guards it. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/block_view.h"

namespace transload {

inline constexpr std::uint32_t kNoFrame = UINT32_MAX;

class Frames {
 public:
  Frames(std::byte* base, std::uint64_t bytes, std::uint64_t frame_bytes);

  std::uint32_t count() const { return count_; }
  std::uint32_t limit() const { return limit_; }
  /// Free frames below the limit.
  std::uint32_t free_count() const { return free_; }
  std::uint32_t used_count() const { return used_; }
  const FrameTable& table() const { return table_; }

  /// First frame of a list of n ≤ free_count() frames, n > 0; owner is remembered for each.
  std::uint32_t take(std::uint32_t n, std::uint32_t owner);
  void give_back(std::uint32_t first);
  std::uint32_t owner(std::uint32_t frame) const { return owner_[frame]; }  ///< kNoFrame: free

  /// Frames that may be given out: [0, limit). Raising or lowering keeps lists; used frames above stay used.
  void set_limit(std::uint32_t limit);
  /// Lowest used frame at or above the limit; kNoFrame when there is none.
  std::uint32_t used_above_limit() const;
  /// Lets a free frame below the limit (one must be free) take the place of `frame` in its list; `first` is the list's
  /// first frame, before and after. Returns the frame whose content `frame`'s must become.
  std::uint32_t relocate(std::uint32_t* first, std::uint32_t frame);

 private:
  std::uint32_t find_run(std::uint32_t n) const;
  void claim(std::uint32_t frame, std::uint32_t owner);
  void release(std::uint32_t frame);

  FrameTable table_;
  std::vector<std::uint32_t> next_, owner_;
  std::uint32_t count_, limit_, free_, used_ = 0;
};

}  // namespace transload
