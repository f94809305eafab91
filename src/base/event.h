// Event: "counter has reached target". The universal ready signal: a stream's completed work, the arrival of a copy.
// Trivially copyable; the counter must outlive it. For the record an event may say what it stands for: the arrival of
// a block over a lane. Waiting and signalling are safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ids.h"
#include "base/lane.h"

namespace transload {

struct Event {
  const std::atomic<std::uint32_t>* counter = nullptr;  ///< null: already complete
  std::uint32_t target = 0;
  BlockId block;  ///< that arrives; invalid: something else
  Lane source = Lane::issue;
  Tier tier = Tier::host;

  bool done() const {
    return counter == nullptr || static_cast<std::int32_t>(counter->load(std::memory_order_acquire) - target) >= 0;
  }
  void wait() const {
    if (counter == nullptr) return;
    for (auto now = counter->load(std::memory_order_acquire); static_cast<std::int32_t>(now - target) < 0;
         now = counter->load(std::memory_order_acquire))
      counter->wait(now, std::memory_order_acquire);
  }
};

}  // namespace transload
