// Scratch: a bump allocator over the compute tier's workspace. Placing the same buffers on an empty scratch tells how
// much they need, so a phase's size and its use come from one piece of code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/size.h"

namespace transload {

class Scratch {
 public:
  static constexpr std::uint64_t kAlign = 64;

  /// `base` may be null: in a dry run, and to measure. Addresses are then only numbers and must not be used.
  explicit Scratch(std::byte* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <class T>
  T* take(std::uint64_t count) {
    const std::uint64_t at = used_;
    used_ += round_up(count * sizeof(T), kAlign);
    peak_ = std::max(peak_, used_);
    return reinterpret_cast<T*>(base_ + at);
  }
  /// Buffers placed after a mark share their room with those placed after rewinding to it.
  std::uint64_t mark() const { return used_; }
  void rewind(std::uint64_t mark) { used_ = mark; }
  std::uint64_t peak() const { return peak_; }

 private:
  std::uintptr_t base_;
  std::uint64_t used_ = 0, peak_ = 0;
};

}  // namespace transload
