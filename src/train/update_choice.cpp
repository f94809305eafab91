#include "train/update_choice.h"

#include <algorithm>
#include <map>

namespace transload {
namespace {

/// Fibonacci search: 143 places need ten answers.
constexpr std::uint64_t kLong = 89, kShort = 55;
static_assert(kLong + kShort == kFinestUpdates + 2, "places 0 … kFinestUpdates");

class Search {
 public:
  Search(std::uint64_t most, const std::function<std::uint64_t(std::uint64_t)>& cost)
      : most_(most), places_(std::min(most, kFinestUpdates)), cost_(cost) {}

  std::uint64_t run() {
    if (most_ == 0 || at(places_) == 0) return most_;
    at(0);
    std::uint64_t begin = 0, far = kLong, near = kShort;  // the best place is among the far + near − 1 from begin on
    while (far > near) {
      const std::uint64_t left = at(begin + near - 1), right = at(begin + far - 1);
      if (right != UINT64_MAX && right <= left) begin += near;
      const std::uint64_t shorter = far - near;
      far = near;
      near = shorter;
    }
    at(begin);
    return best();
  }

 private:
  std::uint64_t at(std::uint64_t place) {
    if (place > places_) return UINT64_MAX;
    const std::uint64_t count = most_ / places_ * place + most_ % places_ * place / places_;
    const auto known = asked_.find(count);
    return known != asked_.end() ? known->second : asked_[count] = cost_(count);
  }
  /// Of all that was asked: a plan's price is not quite as smooth as the room that it has.
  std::uint64_t best() const {
    auto best = asked_.begin();
    for (auto one = asked_.begin(); one != asked_.end(); ++one)
      if (one->second <= best->second && one->second != UINT64_MAX) best = one;
    return best->first;
  }

  const std::uint64_t most_, places_;
  const std::function<std::uint64_t(std::uint64_t)>& cost_;
  std::map<std::uint64_t, std::uint64_t> asked_;
};

}  // namespace

std::uint64_t choose_device_updates(std::uint64_t most, const std::function<std::uint64_t(std::uint64_t)>& cost) {
  return Search(most, cost).run();
}

}  // namespace transload
