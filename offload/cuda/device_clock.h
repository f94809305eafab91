// DeviceClock: when events of a device were reached, on the host's clock. A base event is recorded on a stream of its
// own between two looks at the host's clock; other events are placed by what the device measured since then. The base
// is set anew for each step that is timed: elapsed times are single floats and lose their last digits with distance.
// Threading: on() and host_ns() from any thread, set() from the issuing thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace transload::cuda {

class DeviceClock {
 public:
  DeviceClock() = default;
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;

  /// Sets the base and turns timing on, or off. Returns by how much times may be wrong together, ns.
  std::uint64_t set(bool on);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// `event` has been reached, and was made with timing.
  std::uint64_t host_ns(cudaEvent_t event);

 private:
  void open();
  std::mutex mutex_;
  std::atomic<bool> on_{false};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t base_ = nullptr;
  std::uint64_t base_ns_ = 0;
};

}  // namespace transload::cuda
