// Device: where the device tier's bytes lie, and how they get there. The emulated device is a budgeted part of host
// memory whose copies run on threads as streams do, at an optional rate; the CUDA device is in offload/cuda.
//
// Everything that touches device memory goes through a stream of the device: its tasks issue work, `after` runs on the
// host when that work has ended. Copies of one direction use one stream; both directions run at once.
// Threading: any thread; memory() and host_memory() once each, before streams are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/block_view.h"
#include "offload/stream.h"

namespace transload {

/// Memory of a tier, given back by the destructor.
class TierMemory {
 public:
  virtual ~TierMemory() = default;
  virtual std::byte* base() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  /// Device memory, 256-byte aligned. BudgetError where it is not there.
  virtual std::unique_ptr<TierMemory> memory(std::uint64_t bytes) = 0;
  /// Host memory that copies to and from this device run fastest with.
  virtual std::unique_ptr<TierMemory> host_memory(std::uint64_t bytes, bool populate) = 0;
  /// `capacity`: tasks that may wait in it.
  virtual std::unique_ptr<Stream> make_stream(std::size_t capacity) = 0;
  /// In a task of `stream`: issues the copy of a block's bytes between host and device memory.
  virtual void copy(const BlockView& from, const BlockView& to, Stream& stream) = 0;
  /// From now on the times of launch_timed() come from the device's own events, mapped to the host's clock with an
  /// error of at most what is returned, ns; without them, from the host's clock around the work. 0: they are the host's
  /// anyway.
  virtual std::uint64_t time_by_events(bool) { return 0; }
  /// Copies within device memory; returns when the bytes are there. Neither range is in use.
  virtual void move(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
};

/// Host memory that is not bound to a device. Huge pages where the kernel gives them.
std::unique_ptr<TierMemory> make_host_memory(std::uint64_t bytes, bool populate);

/// `link_rate`: bytes a second each way; 0: memory speed.
std::unique_ptr<Device> make_emulated_device(double link_rate);

}  // namespace transload
