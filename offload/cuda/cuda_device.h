// CudaDevice: one GPU as a device tier. Copies go through pinned host memory where the system lets pages be locked;
// where it does not, they still work, slower, and unpinned_reason() says why. Host memory is bound to the NUMA node
// nearest to the device before it is touched, where there are several and the system agrees; host_node() says which.
// No default-stream work, no device-wide synchronisation, nothing allocated after memory() and host_memory().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/cuda/device_clock.h"
#include "offload/device.h"
#include "offload/numa/numa.h"

namespace transload::cuda {

struct DeviceFacts {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  std::uint64_t total_bytes = 0, free_bytes = 0;
  std::string pci;              ///< bus id
  std::string driver, runtime;  ///< versions of CUDA: the newest that the driver can do, this program's
};

/// Devices that the driver shows. `reason` says why there are none (no driver, no device).
std::vector<DeviceFacts> list_devices(std::string* reason);

class CudaDevice final : public Device {
 public:
  /// InputError: no driver, no such device, no kernel for it in this binary.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  const DeviceFacts& facts() const { return facts_; }
  std::uint64_t free_bytes() const;  ///< now
  /// Empty where host memory is page-locked; else what the system said, with the amount and the limit.
  const std::string& unpinned_reason() const { return unpinned_reason_; }

  /// Where host memory of this device should lie.
  const numa::Near& host_node() const { return near_; }
  /// Empty where host memory is bound to that node, or there is no other; else why not.
  const std::string& unbound_reason() const { return unbound_reason_; }

  std::unique_ptr<TierMemory> memory(std::uint64_t bytes) override;
  std::unique_ptr<TierMemory> host_memory(std::uint64_t bytes, bool populate) override;
  std::unique_ptr<Stream> make_stream(std::size_t capacity) override;
  void copy(const BlockView& from, const BlockView& to, Stream& stream) override;
  std::uint64_t time_by_events(bool on) override { return clock_.set(on); }
  void move(std::byte* to, const std::byte* from, std::uint64_t bytes) override;

 private:
  DeviceFacts facts_;
  DeviceClock clock_;
  std::unique_ptr<TierMemory> bound_memory(std::uint64_t bytes);
  std::unique_ptr<TierMemory> registered(std::unique_ptr<TierMemory> memory, std::uint64_t bytes, const char* before);
  std::string unpinned_reason_;
  numa::Near near_;
  bool several_nodes_ = false;
  std::string unbound_reason_;
  class MoveStream;
  std::unique_ptr<MoveStream> moves_;
  int streams_made_ = 0;
};

}  // namespace transload::cuda
