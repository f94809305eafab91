// Accelerator: a GPU as training sees it: its device tier, the stream its kernels run in, the kernels. There is one
// kind (src/train/cuda), in programs that were built with it; it announces itself when such a program starts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "offload/device.h"
#include "optim/gradient_kernels.h"
#include "optim/update_kernels.h"
#include "train/step_kernels.h"

namespace transload {

struct AcceleratorFacts {
  std::string name;  ///< "NVIDIA H200, sm_90"
  int ordinal = 0;
  std::string capability;       ///< "9.0"
  std::string pci;              ///< bus id
  std::string driver, runtime;  ///< versions
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;   ///< after context and libraries
  std::uint64_t taken_bytes = 0;  ///< by context and libraries, and by whoever else uses it
};

/// How host memory and its device meet; of a device in use.
struct HostMemoryFacts {
  std::string unpinned_reason;  ///< why host memory is not page-locked; empty where it is
  int node = -1;                ///< NUMA node nearest to the device; −1: not known
  std::string unbound_reason;   ///< why memory is not bound to it; empty where it is, or there is no other
};

/// What copies between a device and host memory reach, bytes a second; `both`: both directions in sum.
struct AcceleratorLinks {
  double host_to_device = 0, device_to_host = 0, both = 0;
  std::uint64_t bytes = 0;  ///< of host memory that this was measured with, each way
  HostMemoryFacts host;
};

/// Outlives everything that it makes. Threading: the issuing thread; kernels from tasks of the compute stream.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual const AcceleratorFacts& facts() const = 0;
  virtual Device& device() = 0;
  /// As of the last host memory that was taken.
  virtual HostMemoryFacts host_memory() const = 0;
  /// The stream that all kernels run in; one at a time.
  virtual std::unique_ptr<Stream> make_compute_stream() = 0;
  /// Sizes can be asked for at once; memory is taken when the first task calls it.
  virtual std::unique_ptr<StepKernels> make_kernels(Dtype dtype) = 0;
  virtual std::shared_ptr<GradientKernels> make_gradient_kernels() = 0;
  /// The stream of collectives, beside the compute stream; and the kernels that work on what they make.
  virtual std::unique_ptr<Stream> make_comm_stream() = 0;
  virtual std::shared_ptr<GradientKernels> make_gradient_kernels(Stream& stream) = 0;
  virtual std::shared_ptr<UpdateKernels> make_update_kernels() = 0;

  /// The algorithms of matrix products chosen so far, as text; how many; and those of an earlier run, to use again:
  /// false where they are another library's or device's.
  virtual std::string algorithms() const = 0;
  virtual std::size_t algorithm_count() const = 0;
  virtual bool use_algorithms(const std::string& text) = 0;
};

/// What a program has of accelerators.
struct AcceleratorKind {
  /// Of a local rank. InputError, in one line: why there is none.
  std::unique_ptr<Accelerator> (*open)(int local_rank) = nullptr;
  /// Brings ranks together whose collectives work in device memory; null: not in this build.
  std::unique_ptr<Communicator> (*connect)(const Launch&, const CommOptions&) = nullptr;
  std::vector<AcceleratorFacts> (*list)(std::string* reason) = nullptr;
  AcceleratorLinks (*measure)(int ordinal) = nullptr;
};
/// At the start of a program, before threads.
void announce_accelerators(const AcceleratorKind& kind);

/// InputError: not in this build, no driver, no device, fewer devices than local ranks.
std::unique_ptr<Accelerator> open_accelerator(int local_rank = 0);
/// Ranks that compute on accelerators: by their own collectives where the build has them, else through host memory.
std::unique_ptr<Communicator> connect_accelerators(const Launch& launch, const CommOptions& options);
/// Takes memory of a device that list_accelerators() showed, and gives it back.
AcceleratorLinks measure_accelerator(int ordinal);
/// All that the driver shows; `reason` says why there are none.
std::vector<AcceleratorFacts> list_accelerators(std::string* reason);

}  // namespace transload
