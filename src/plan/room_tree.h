// Room left at each position of a circle: take frames over a range, ask for the least over a range. O(log n) each.
// Ranges [from, to) have from < n and to ≤ from + n; they may cross the end.
#pragma once

#include <cstdint>
#include <vector>

namespace transload {

class RoomTree {
 public:
  explicit RoomTree(const std::vector<std::uint64_t>& room);

  void take(std::uint64_t from, std::uint64_t to, std::uint64_t frames);
  /// INT64_MAX for an empty range.
  std::int64_t least(std::uint64_t from, std::uint64_t to) const;
  /// The smallest f ≥ from such that [f, to) has room for `frames` throughout; `to` when its last position has not.
  std::uint64_t earliest(std::uint64_t from, std::uint64_t to, std::uint64_t frames) const;

 private:
  void add(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to, std::int64_t change);
  std::int64_t query(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to) const;
  /// Last position in [from, to) with less than `frames`, or -1.
  std::int64_t last_below(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to,
                          std::int64_t frames) const;

  std::size_t n_;
  std::vector<std::int64_t> least_;  // of the subtree, without what is pending above
  std::vector<std::int64_t> added_;  // to all of the subtree
};

}  // namespace transload
