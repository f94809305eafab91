#include "plan/room_tree.h"

#include <algorithm>

namespace transload {

namespace {
std::size_t power_of_two_at_least(std::size_t n) {
  std::size_t size = 1;
  while (size < n) size *= 2;
  return size;
}
}  // namespace

RoomTree::RoomTree(const std::vector<std::uint64_t>& room) : n_(room.size()) {
  const std::size_t leaves = power_of_two_at_least(std::max<std::size_t>(n_, 1));
  least_.assign(2 * leaves, INT64_MAX / 2);
  added_.assign(2 * leaves, 0);
  for (std::size_t p = 0; p < n_; ++p) least_[leaves + p] = static_cast<std::int64_t>(room[p]);
  for (std::size_t node = leaves - 1; node >= 1; --node)
    least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
}

void RoomTree::take(std::uint64_t from, std::uint64_t to, std::uint64_t frames) {
  const std::size_t leaves = least_.size() / 2;
  const auto change = -static_cast<std::int64_t>(frames);
  if (from < std::min<std::uint64_t>(to, n_)) add(1, 0, leaves, from, std::min<std::uint64_t>(to, n_), change);
  if (to > n_) add(1, 0, leaves, 0, to - n_, change);
}

std::int64_t RoomTree::least(std::uint64_t from, std::uint64_t to) const {
  const std::size_t leaves = least_.size() / 2;
  std::int64_t result = INT64_MAX;
  if (from < std::min<std::uint64_t>(to, n_)) result = query(1, 0, leaves, from, std::min<std::uint64_t>(to, n_));
  if (to > n_) result = std::min(result, query(1, 0, leaves, 0, to - n_));
  return result;
}

std::uint64_t RoomTree::earliest(std::uint64_t from, std::uint64_t to, std::uint64_t frames) const {
  const std::size_t leaves = least_.size() / 2;
  const auto wanted = static_cast<std::int64_t>(frames);
  if (to > n_) {
    const std::int64_t wrapped = last_below(1, 0, leaves, 0, to - n_, wanted);
    if (wrapped >= 0) return n_ + static_cast<std::uint64_t>(wrapped) + 1;
  }
  const std::int64_t last = last_below(1, 0, leaves, from, std::min<std::uint64_t>(to, n_), wanted);
  return last < 0 ? from : static_cast<std::uint64_t>(last) + 1;
}

void RoomTree::add(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to,
                   std::int64_t change) {
  if (from <= low && high <= to) {
    least_[node] += change;
    added_[node] += change;
    return;
  }
  const std::size_t middle = (low + high) / 2;
  if (from < middle) add(2 * node, low, middle, from, to, change);
  if (to > middle) add(2 * node + 1, middle, high, from, to, change);
  least_[node] = std::min(least_[2 * node], least_[2 * node + 1]) + added_[node];
}

std::int64_t RoomTree::query(std::size_t node, std::size_t low, std::size_t high, std::size_t from,
                             std::size_t to) const {
  if (from <= low && high <= to) return least_[node];
  const std::size_t middle = (low + high) / 2;
  std::int64_t result = INT64_MAX / 2;
  if (from < middle) result = std::min(result, query(2 * node, low, middle, from, to));
  if (to > middle) result = std::min(result, query(2 * node + 1, middle, high, from, to));
  return result + added_[node];
}

std::int64_t RoomTree::last_below(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to,
                                  std::int64_t frames) const {
  if (high <= from || to <= low || least_[node] >= frames) return -1;
  if (high - low == 1) return static_cast<std::int64_t>(low);
  const std::size_t middle = (low + high) / 2;
  const std::int64_t right = last_below(2 * node + 1, middle, high, from, to, frames - added_[node]);
  if (right >= 0) return right;
  return last_below(2 * node, low, middle, from, to, frames - added_[node]);
}

}  // namespace transload
