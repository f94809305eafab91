#include "offload/slot_table.h"

#include <algorithm>

#include "base/check.h"

namespace transload {

void SlotTable::add_extent(SlotClass extent) {
  TRANSLOAD_CHECK(extent.bytes > 0 && extent.count > 0, "{} slots of {} bytes", extent.count, extent.bytes);
  TRANSLOAD_CHECK(claims_.size() + extent.count < UINT32_MAX, "{} more slots after {}", extent.count, claims_.size());
  first_.push_back(claims_.size());
  extents_.push_back(extent);
  claims_.resize(claims_.size() + extent.count, 0);
  auto at = std::lower_bound(classes_.begin(), classes_.end(), extent.bytes,
                             [](const Class& c, std::uint64_t bytes) { return c.bytes < bytes; });
  if (at == classes_.end() || at->bytes != extent.bytes) at = classes_.insert(at, Class{extent.bytes, 0, {}});
  at->slots += extent.count;
  at->free.reserve(at->slots);
  committed_.reserve(claims_.size());
  rebuild_free_lists();
}

void SlotTable::rebuild_free_lists() {
  for (Class& c : classes_) c.free.clear();
  for (std::size_t e = extents_.size(); e-- > 0;) {
    Class& c = class_of(extents_[e].bytes);
    for (std::uint64_t i = extents_[e].count; i-- > 0;) {
      const std::uint64_t slot = first_[e] + i;
      if (claims_[slot] == 0) c.free.push_back(static_cast<std::uint32_t>(slot));
    }
  }
}

std::uint64_t SlotTable::count_of(std::uint64_t slot_bytes) const {
  for (const Class& c : classes_) {
    if (c.bytes == slot_bytes) return c.slots;
  }
  return 0;
}

SlotTable::Place SlotTable::place(SlotId slot) const {
  TRANSLOAD_CHECK(slot.value < claims_.size(), "slot {} of {}", slot.value, claims_.size());
  const auto after = std::upper_bound(first_.begin(), first_.end(), slot.value);
  const auto extent = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {extent, slot.value - first_[extent]};
}

SlotTable::Class& SlotTable::class_of(std::uint64_t slot_bytes) {
  const auto at = std::lower_bound(classes_.begin(), classes_.end(), slot_bytes,
                                   [](const Class& c, std::uint64_t bytes) { return c.bytes < bytes; });
  TRANSLOAD_CHECK(at != classes_.end() && at->bytes == slot_bytes, "no slots of {} bytes", slot_bytes);
  return *at;
}

bool SlotTable::adopt(std::span<const StoredBlock> blocks) {
  for (const StoredBlock& block : blocks) {
    if (!block.slot.valid()) continue;
    if (block.slot.value >= claims_.size() || claims_[block.slot.value] != 0) return false;
    if (block.bytes > slot_bytes(block.slot)) return false;
    claims_[block.slot.value] = kInUse | kCommitted;
    committed_.push_back(block.slot.value);
  }
  rebuild_free_lists();
  return true;
}

SlotId SlotTable::allocate(std::uint64_t bytes) {
  const auto at = std::lower_bound(classes_.begin(), classes_.end(), bytes,
                                   [](const Class& c, std::uint64_t wanted) { return c.bytes < wanted; });
  if (at == classes_.end() || at->free.empty()) return {};
  const std::uint32_t slot = at->free.back();
  at->free.pop_back();
  // Without keep_committed a freed slot keeps its kCommitted mark until it is taken again: then the commit is gone.
  if ((claims_[slot] & kCommitted) != 0) commit_overwritten_ = true;
  claims_[slot] = kInUse;
  return SlotId(slot);
}

bool SlotTable::note_write(SlotId slot) {
  const std::uint8_t claims = claims_[slot.value];
  if (!keep_committed_ && (claims & kCommitted) != 0) commit_overwritten_ = true;
  return keep_committed_ ? claims == kInUse : (claims & kInUse) != 0;
}

void SlotTable::release(std::uint32_t slot) { class_of(slot_bytes(SlotId(slot))).free.push_back(slot); }

void SlotTable::free(SlotId slot) {
  TRANSLOAD_CHECK(slot.value < claims_.size() && (claims_[slot.value] & kInUse) != 0, "slot {} is not in use",
                  slot.value);
  claims_[slot.value] &= static_cast<std::uint8_t>(~kInUse);
  if (claims_[slot.value] == 0 || !keep_committed_) release(slot.value);
}

void SlotTable::commit(std::span<const StoredBlock> blocks) {
  for (const StoredBlock& block : blocks) {
    if (!block.slot.valid()) continue;
    TRANSLOAD_CHECK(block.slot.value < claims_.size() && (claims_[block.slot.value] & (kInUse | kNext)) == kInUse,
                    "slot {} in a commit is not in use, or comes twice", block.slot.value);
    claims_[block.slot.value] |= kNext;
  }
  for (const std::uint32_t slot : committed_) {
    const bool was_free = !keep_committed_ && (claims_[slot] & kInUse) == 0;
    if ((claims_[slot] & kNext) != 0) continue;
    claims_[slot] &= static_cast<std::uint8_t>(~kCommitted);
    if (claims_[slot] == 0 && !was_free) release(slot);
  }
  committed_.clear();
  for (const StoredBlock& block : blocks) {
    if (!block.slot.valid()) continue;
    claims_[block.slot.value] = kInUse | kCommitted;
    committed_.push_back(block.slot.value);
  }
  commit_overwritten_ = false;
}

}  // namespace transload
