// TensorDevice: the device that a caller's tensors lie on, as the drop-in optimizer uses it: a copy stream in each
// direction beside the caller's stream, and the update of state that lies there. There is one kind (src/train/cuda), in
// programs that were built with it; it announces itself when such a program starts.
//
// Order: begin_step() puts what comes behind the caller's stream, end_step() puts the caller's stream behind it. Copies
// of one direction are in order; between the directions only slots order: a slot is fetched, used by the host, sent,
// and its next fetch waits for that on the device. Calls issue work and return, but for those that say that they wait.
// Errors: Error for what CUDA refuses or reports; the calls after it may be refused as well.
// Threading: one caller at a time, any thread. The calling thread's current device is left as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/adamw.h"
#include "offload/device.h"

namespace transload {

/// The update of one run of a tensor where it lies; all pointers are device memory.
struct DeviceUpdate {
  kernels::AdamwRun run;
  std::int64_t elements = 0;
  kernels::AdamwCoefficients coefficients{};
  std::uint64_t* known = nullptr;  ///< hash a tile of what the last step left (kernels/cpu/element_hash.h); bf16 only
};

class TensorDevice {
 public:
  /// Places of staging that can be on their way at once: one comes, one is used, one goes.
  static constexpr std::size_t kSlots = 3;

  virtual ~TensorDevice() = default;  ///< waits for its copies
  /// Page-locked where the system allows it; unpinned_reason() says why not.
  virtual std::unique_ptr<TierMemory> host_memory(std::uint64_t bytes) = 0;
  virtual std::string unpinned_reason() const = 0;
  /// BudgetError where it is not there.
  virtual std::unique_ptr<TierMemory> memory(std::uint64_t bytes) = 0;

  virtual void begin_step(void* caller_stream) = 0;
  virtual void end_step() = 0;

  virtual void to_host(void* to, const void* from, std::uint64_t bytes) = 0;
  virtual void to_device(void* to, const void* from, std::uint64_t bytes) = 0;
  virtual void zero(void* at, std::uint64_t bytes) = 0;  ///< on the device, in order with to_device
  /// Copies to the host from now on come after the slot was sent.
  virtual void begin_fetch(std::size_t slot) = 0;
  virtual void end_fetch(std::size_t slot) = 0;     ///< all copies to the host so far are the slot's
  virtual void wait_fetched(std::size_t slot) = 0;  ///< waits
  virtual void sent(std::size_t slot) = 0;          ///< all copies to the device so far are the slot's
  /// In the caller's stream, between begin_step and end_step.
  virtual void update(const DeviceUpdate& update) = 0;

  /// Waits until copies of both directions have ended, also where it throws; after end_step, until the updates have
  /// too.
  virtual void settle() = 0;
};

struct TensorDeviceKind {
  std::unique_ptr<TensorDevice> (*open)(int number) = nullptr;  ///< InputError: no such device
  std::string (*unavailable)() = nullptr;                       ///< why there is none; empty where there is
};
/// At the start of a program, before threads.
void announce_tensor_devices(const TensorDeviceKind& kind);

std::string tensor_device_unavailable();
/// InputError, in one line: not in this build, no driver, no such device.
std::unique_ptr<TensorDevice> open_tensor_device(int number);

}  // namespace transload
