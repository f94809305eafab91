#include "train/cuda/cuda_accelerator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/size.h"
#ifdef TRANSLOAD_HAVE_NCCL
#include "comm/cuda/nccl_communicator.h"
#endif
#include "kernels/cuda/kernels.h"
#include "train/accelerator.h"
#include "train/cuda/cuda_kernels.h"
#include "train/rates.h"

namespace transload::cuda {
namespace {

constexpr std::size_t kStreamCapacity = 1024;
constexpr std::uint64_t kProbeBytes = 256 * MiB;                  // each way
[[maybe_unused]] constexpr std::uint64_t kPieceBytes = 32 * MiB;  // of collectives, at once

AcceleratorFacts facts_of(const DeviceFacts& device) {
  AcceleratorFacts facts;
  facts.name = fmt::format("{}, sm_{}{}", device.name, device.major, device.minor);
  facts.ordinal = device.ordinal;
  facts.capability = fmt::format("{}.{}", device.major, device.minor);
  facts.pci = device.pci;
  facts.driver = device.driver;
  facts.runtime = device.runtime;
  facts.total_bytes = device.total_bytes;
  facts.free_bytes = device.free_bytes;
  return facts;
}

HostMemoryFacts host_memory_of(const CudaDevice& device) {
  return {device.unpinned_reason(), device.host_node().node, device.unbound_reason()};
}

class CudaAccelerator final : public Accelerator {
 public:
  explicit CudaAccelerator(int ordinal)
      : context_(std::make_shared<CudaContext>(ordinal)), facts_(facts_of(context_->device.facts())) {
    facts_.free_bytes = context_->device.free_bytes();  // the context and the products' library are loaded now
    facts_.taken_bytes = facts_.total_bytes - facts_.free_bytes;
  }
  const AcceleratorFacts& facts() const override { return facts_; }
  Device& device() override { return context_->device; }
  HostMemoryFacts host_memory() const override { return host_memory_of(context_->device); }
  std::unique_ptr<Stream> make_compute_stream() override {
    std::unique_ptr<Stream> stream = context_->device.make_stream(kStreamCapacity);
    context_->compute = static_cast<CudaStream*>(stream.get());
    return stream;
  }
  std::unique_ptr<StepKernels> make_kernels(Dtype dtype) override { return make_cuda_kernels(dtype, context_); }
  std::shared_ptr<GradientKernels> make_gradient_kernels() override { return make_cuda_gradient_kernels(context_); }
  std::unique_ptr<Stream> make_comm_stream() override { return context_->device.make_stream(kStreamCapacity); }
  std::shared_ptr<GradientKernels> make_gradient_kernels(Stream& stream) override {
    return make_cuda_gradient_kernels(context_, static_cast<CudaStream*>(&stream));
  }
  std::shared_ptr<UpdateKernels> make_update_kernels() override { return make_cuda_update_kernels(context_); }
  std::string algorithms() const override { return context_->products.to_json(); }
  std::size_t algorithm_count() const override { return context_->products.size(); }
  bool use_algorithms(const std::string& text) override { return context_->products.from_json(text); }

 private:
  std::shared_ptr<CudaContext> context_;
  AcceleratorFacts facts_;
};

/// A local rank's device is the one of that number among the visible ones; where there is none, the first says why.
int ordinal_of(int local_rank) {
  std::string reason;
  const auto devices = static_cast<int>(list_devices(&reason).size());
  if (devices > 0 && local_rank >= devices)
    throw InputError(fmt::format("This is rank {} on its machine, where {} GPU{} visible: one rank a GPU.", local_rank,
                                 devices, devices == 1 ? " is" : "s are"));
  return local_rank;
}

std::unique_ptr<Accelerator> open(int local_rank) { return std::make_unique<CudaAccelerator>(ordinal_of(local_rank)); }

#ifdef TRANSLOAD_HAVE_NCCL
void sum_pieces(const std::byte* pieces, std::uint64_t stride, int count, std::byte* out, std::uint64_t elements,
                Dtype type, cudaStream_t stream) {
  const auto sum = [&]<class T>(const T* in, T* to) {
    kernels::cuda::tree_sum(in, static_cast<std::int64_t>(stride), count, to, static_cast<std::int64_t>(elements),
                            stream);
  };
  if (type == Dtype::f32)
    sum(reinterpret_cast<const float*>(pieces), reinterpret_cast<float*>(out));
  else
    sum(reinterpret_cast<const bf16*>(pieces), reinterpret_cast<bf16*>(out));
}

std::unique_ptr<Communicator> connect(const Launch& launch, const CommOptions& options) {
  NcclOptions nccl{.comm = options, .sum = &sum_pieces};
  nccl.device = ordinal_of(launch.local_rank.value_or(launch.place.rank));
  nccl.comm.largest_bytes = kPieceBytes;
  return make_nccl_communicator(launch, nccl);
}
constexpr auto kConnect = &connect;
#else
constexpr std::unique_ptr<Communicator> (*kConnect)(const Launch&, const CommOptions&) = nullptr;
#endif

std::vector<AcceleratorFacts> list(std::string* reason) {
  std::vector<AcceleratorFacts> all;
  for (const DeviceFacts& device : list_devices(reason)) all.push_back(facts_of(device));
  return all;
}

AcceleratorLinks measure(int ordinal) {
  CudaDevice device(ordinal);
  AcceleratorLinks links = measure_both_ways(device, std::clamp(device.facts().free_bytes / 4, 64 * KiB, kProbeBytes));
  links.host = host_memory_of(device);
  return links;
}

}  // namespace

void announce() { announce_accelerators({.open = &open, .connect = kConnect, .list = &list, .measure = &measure}); }

}  // namespace transload::cuda
