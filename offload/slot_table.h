// Which slots are free. A slot has two independent claims: in use (the caller holds it) and committed (the last commit
// refers to it); it is free when it has neither.
//
// Slots are numbered through all extents (runs of equal slots: one file each) in the order in which those were added,
// so that a store can grow without renumbering. Extents of equal slot size form one class.
// Threading: one thread at a time; but slot_bytes, place and (of different slots) note_write from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "offload/store.h"

namespace transload {

class SlotTable {
 public:
  struct Place {
    std::size_t extent = 0;
    std::uint64_t index = 0;  ///< within the extent
  };

  /// `keep_committed` false (--durability none): freeing a slot ends both claims.
  explicit SlotTable(bool keep_committed) : keep_committed_(keep_committed) {}

  void add_extent(SlotClass extent);
  std::span<const SlotClass> extents() const { return extents_; }
  std::uint64_t count() const { return claims_.size(); }
  /// How many slots of exactly this size there are.
  std::uint64_t count_of(std::uint64_t slot_bytes) const;

  std::uint64_t slot_bytes(SlotId slot) const { return extents_[place(slot).extent].bytes; }
  Place place(SlotId slot) const;
  /// Says that the slot will be written. False, a bug of the caller: it is free, or the last commit needs it.
  bool note_write(SlotId slot);

  /// After opening: the last commit's slots, in use and committed. False, changing nothing more, at the first slot that
  /// does not exist or comes twice.
  bool adopt(std::span<const StoredBlock> blocks);

  SlotId allocate(std::uint64_t bytes);
  void free(SlotId slot);
  /// `blocks` is what the last commit refers to now.
  void commit(std::span<const StoredBlock> blocks);
  /// A slot of the last commit holds something else by now, or may (only without keep_committed).
  bool commit_overwritten() const { return commit_overwritten_.load(); }

 private:
  static constexpr std::uint8_t kInUse = 1, kCommitted = 2, kNext = 4;  // kNext: seen while a commit is taken over

  struct Class {
    std::uint64_t bytes = 0;
    std::uint64_t slots = 0;
    std::vector<std::uint32_t> free;  // a stack with the lowest number on top at first
  };
  Class& class_of(std::uint64_t slot_bytes);
  void release(std::uint32_t slot);
  void rebuild_free_lists();

  const bool keep_committed_;
  std::atomic<bool> commit_overwritten_{false};
  std::vector<SlotClass> extents_;
  std::vector<std::uint64_t> first_;  // of each extent
  std::vector<Class> classes_;        // ascending sizes
  std::vector<std::uint8_t> claims_;
  std::vector<std::uint32_t> committed_;  // slots with kCommitted
};

}  // namespace transload
