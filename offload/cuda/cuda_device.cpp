#include "offload/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/error.h"
#include "base/size.h"
#include "offload/cuda/cuda_error.h"
#include "offload/cuda/cuda_stream.h"

namespace transload::cuda {
namespace {

class DeviceMemory final : public TierMemory {
 public:
  explicit DeviceMemory(void* base) : base_(base) {}
  ~DeviceMemory() override { cudaFree(base_); }
  std::byte* base() const override { return static_cast<std::byte*>(base_); }

 private:
  void* base_;
};

/// Taken from the driver, which locks its pages.
class PinnedMemory final : public TierMemory {
 public:
  explicit PinnedMemory(void* base) : base_(base) {}
  ~PinnedMemory() override { cudaFreeHost(base_); }
  std::byte* base() const override { return static_cast<std::byte*>(base_); }

 private:
  void* base_;
};

/// Ours, with its pages locked afterwards.
class RegisteredMemory final : public TierMemory {
 public:
  explicit RegisteredMemory(std::unique_ptr<TierMemory> memory) : memory_(std::move(memory)) {}
  ~RegisteredMemory() override { cudaHostUnregister(memory_->base()); }
  std::byte* base() const override { return memory_->base(); }

 private:
  std::unique_ptr<TierMemory> memory_;
};

std::string locked_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return format_size(limit.rlim_cur);
}

std::string version_of(cudaError_t (*ask)(int*)) {
  int version = 0;
  if (ask(&version) != cudaSuccess) return "";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

DeviceFacts facts_of(int ordinal) {
  DeviceFacts facts;
  facts.ordinal = ordinal;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", fmt::format("device {}", ordinal));
  facts.name = properties.name;
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.total_bytes = properties.totalGlobalMem;
  facts.driver = version_of(&cudaDriverGetVersion);
  facts.runtime = version_of(&cudaRuntimeGetVersion);
  facts.pci =
      fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  return facts;
}

}  // namespace

/// A bare stream: whoever moves something waits for it.
class CudaDevice::MoveStream {
 public:
  MoveStream() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "moves");
  }
  ~MoveStream() { cudaStreamDestroy(stream); }
  MoveStream(const MoveStream&) = delete;
  cudaStream_t stream = nullptr;
};

std::vector<DeviceFacts> list_devices(std::string* reason) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    *reason = fmt::format("{} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
    return {};
  }
  if (count == 0) *reason = "the driver shows no device";
  std::vector<DeviceFacts> devices;
  devices.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) devices.push_back(facts_of(i));
  return devices;
}

CudaDevice::CudaDevice(int ordinal) {
  std::string reason;
  const std::vector<DeviceFacts> devices = list_devices(&reason);
  if (devices.empty())
    throw InputError(
        fmt::format("--device cuda: no GPU can be used here: {}. --device cpu trains without one.", reason));
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices.size())
    throw InputError(fmt::format("There is no CUDA device {}: the driver shows {}.", ordinal, devices.size()));
  facts_ = devices[static_cast<std::size_t>(ordinal)];
  check(cudaSetDevice(ordinal), "cudaSetDevice", facts_.name);
  facts_.free_bytes = free_bytes();
  near_ = numa::nearest_node(facts_.pci);
  several_nodes_ = numa::nodes().nodes.size() > 1;
  unbound_reason_ = near_.reason;
  moves_ = std::make_unique<MoveStream>();
}

CudaDevice::~CudaDevice() = default;

std::uint64_t CudaDevice::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", facts_.name);
  return free;
}

std::unique_ptr<TierMemory> CudaDevice::memory(std::uint64_t bytes) {
  void* base = nullptr;
  const cudaError_t result = cudaMalloc(&base, bytes);
  if (result == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&free, &total);
    throw BudgetError(fmt::format("{} has {} free of {}, and {} were asked for. Give a smaller --device-memory.",
                                  facts_.name, format_size(free), format_size(total), format_size(bytes)),
                      bytes, free);
  }
  check(result, "cudaMalloc", format_size(bytes));
  return std::make_unique<DeviceMemory>(base);
}

/// Ours on the node nearest to the device; null where there is nothing to choose, or the system does not let us.
std::unique_ptr<TierMemory> CudaDevice::bound_memory(std::uint64_t bytes) {
  if (!several_nodes_ || near_.node < 0) return nullptr;
  std::unique_ptr<TierMemory> ours = make_host_memory(bytes, false);
  unbound_reason_ = numa::bind(ours->base(), bytes, near_.node);
  if (!unbound_reason_.empty()) return nullptr;
  for (std::uint64_t at = 0; at < bytes; at += 4096) ours->base()[at] = std::byte{0};
  return ours;
}

/// Locks the pages of `memory`. Where the system refuses, memory as it is, and unpinned_reason() says so.
std::unique_ptr<TierMemory> CudaDevice::registered(std::unique_ptr<TierMemory> ours, std::uint64_t bytes,
                                                   const char* before) {
  const cudaError_t result = cudaHostRegister(ours->base(), bytes, cudaHostRegisterDefault);
  if (result == cudaSuccess) return std::make_unique<RegisteredMemory>(std::move(ours));
  cudaGetLastError();
  unpinned_reason_ = fmt::format("{} could not be page-locked ({}cudaHostRegister: {}; limit: {})", format_size(bytes),
                                 before, cudaGetErrorName(result), locked_limit());
  return ours;
}

std::unique_ptr<TierMemory> CudaDevice::host_memory(std::uint64_t bytes, bool populate) {
  if (std::unique_ptr<TierMemory> bound = bound_memory(bytes)) return registered(std::move(bound), bytes, "");
  void* base = nullptr;
  const cudaError_t pinned = cudaHostAlloc(&base, bytes, cudaHostAllocDefault);
  if (pinned == cudaSuccess) return std::make_unique<PinnedMemory>(base);
  cudaGetLastError();
  const std::string before = fmt::format("cudaHostAlloc: {}; ", cudaGetErrorName(pinned));
  return registered(make_host_memory(bytes, populate), bytes, before.c_str());
}

std::unique_ptr<Stream> CudaDevice::make_stream(std::size_t capacity) {
  return std::make_unique<CudaStream>(fmt::format("stream {}", streams_made_++), facts_.ordinal, capacity, clock_);
}

/// Runs that are contiguous on both sides go as one.
void CudaDevice::copy(const BlockView& from, const BlockView& to, Stream& stream) {
  const auto& cuda = static_cast<CudaStream&>(stream);
  for (std::uint64_t at = 0; at < from.bytes();) {
    const BlockView::Run source = from.run_at(at, from.bytes());
    const BlockView::Run target = to.run_at(at, from.bytes());
    const std::uint64_t bytes = std::min(source.bytes, target.bytes);
    check(cudaMemcpyAsync(target.data, source.data, bytes, cudaMemcpyDefault, cuda.get()), "cudaMemcpyAsync",
          fmt::format("{}, {}", cuda.name(), format_size(bytes)));
    at += bytes;
  }
}

void CudaDevice::move(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const cudaStream_t stream = moves_->stream;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync", "within the device");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", "within the device");
}

}  // namespace transload::cuda
