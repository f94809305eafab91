// BlockView: the bytes of a pinned block. A block lies in frames (equal pieces of a tier's arena) that need not be
// neighbours; a view walks them. Valid while the pin is held. A view is small, copyable, owned by nobody.
// In a dry run views are empty (data() == nullptr) and must not be read: kernels are not launched then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace transload {

/// A tier's arena cut into frames; next[] links the frames of a block (UINT32_MAX ends the list).
struct FrameTable {
  std::byte* base = nullptr;
  std::uint64_t frame_bytes = 0;
  const std::uint32_t* next = nullptr;
  std::byte* frame(std::uint32_t f) const { return base + f * frame_bytes; }
};

class BlockView {
 public:
  BlockView() = default;
  /// Contiguous memory that a caller owns.
  BlockView(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  BlockView(const FrameTable* table, std::uint32_t first, std::uint64_t bytes)
      : table_(table), first_(first), bytes_(bytes) {}

  std::uint64_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }

  /// Calls fn(std::byte* data, uint64 offset, uint64 bytes) for each maximal contiguous run of [begin, end), ascending.
  template <class Fn>
  void for_each_run(std::uint64_t begin, std::uint64_t end, Fn&& fn) const {
    while (begin < end) {
      const Run run = run_at(begin, end);
      fn(run.data, begin, run.bytes);
      begin += run.bytes;
    }
  }

  struct Run {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  /// The contiguous run that starts at `begin`, cut at `end` (begin < end ≤ bytes()).
  Run run_at(std::uint64_t begin, std::uint64_t end) const {
    if (table_ == nullptr) return {data_ + begin, end - begin};
    const std::uint64_t size = table_->frame_bytes;
    std::uint32_t f = first_;
    for (std::uint64_t skip = begin / size; skip > 0; --skip) f = table_->next[f];
    Run run{table_->frame(f) + begin % size, size - begin % size};
    for (; begin + run.bytes < end && table_->next[f] == f + 1; ++f) run.bytes += size;
    run.bytes = std::min(run.bytes, end - begin);
    return run;
  }

  /// The address of [begin, end) where it lies in one run, else nullptr.
  std::byte* contiguous(std::uint64_t begin, std::uint64_t end) const {
    const Run run = run_at(begin, end);
    return run.bytes == end - begin ? run.data : nullptr;
  }

  void copy_out(void* to, std::uint64_t begin, std::uint64_t end) const {
    for_each_run(begin, end, [&](const std::byte* data, std::uint64_t offset, std::uint64_t n) {
      std::memcpy(static_cast<std::byte*>(to) + (offset - begin), data, n);
    });
  }
  void copy_in(const void* from, std::uint64_t begin, std::uint64_t end) const {
    for_each_run(begin, end, [&](std::byte* data, std::uint64_t offset, std::uint64_t n) {
      std::memcpy(data, static_cast<const std::byte*>(from) + (offset - begin), n);
    });
  }
  void zero(std::uint64_t begin, std::uint64_t end) const {
    for_each_run(begin, end, [](std::byte* data, std::uint64_t, std::uint64_t n) { std::memset(data, 0, n); });
  }

 private:
  const FrameTable* table_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint32_t first_ = UINT32_MAX;
  std::uint64_t bytes_ = 0;
};

}  // namespace transload
