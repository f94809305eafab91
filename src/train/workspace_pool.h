// WorkspacePool: pieces of one contiguous region, given out first-fit and given back in any order. Small and simple:
// a handful of pieces live at once. Owned memory: none. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/size.h"

namespace transload {

class WorkspacePool {
 public:
  WorkspacePool() = default;
  WorkspacePool(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}

  /// 64-byte aligned; nullptr where no free piece is large enough.
  std::byte* take(std::uint64_t bytes) {
    const std::uint64_t size = round_up(std::max<std::uint64_t>(bytes, 1), kAlign);
    std::uint64_t at = 0;
    auto place = pieces_.begin();
    for (; place != pieces_.end() && place->begin - at < size; ++place) at = place->begin + place->size;
    if (place == pieces_.end() && bytes_ - std::min(at, bytes_) < size) return nullptr;
    pieces_.insert(place, {at, size});
    return base_ + at;
  }
  void give_back(const std::byte* piece) {
    const auto found =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return base_ + p.begin == piece; });
    TRANSLOAD_CHECK(found != pieces_.end(), "no piece at {}", static_cast<const void*>(piece));
    pieces_.erase(found);
  }
  std::uint64_t largest_free() const {
    std::uint64_t most = 0, at = 0;
    for (const Piece& p : pieces_) {
      most = std::max(most, p.begin - at);
      at = p.begin + p.size;
    }
    return std::max(most, bytes_ - std::min(at, bytes_));
  }

 private:
  static constexpr std::uint64_t kAlign = 64;
  struct Piece {
    std::uint64_t begin, size;
  };
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<Piece> pieces_;  // ascending
};

}  // namespace transload
