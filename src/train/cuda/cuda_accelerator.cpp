#include "train/cuda/cuda_accelerator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size.h"
#include "train/accelerator.h"
#include "train/cuda/cuda_kernels.h"
#include "train/rates.h"

namespace transload::cuda {
namespace {

constexpr std::size_t kStreamCapacity = 1024;
constexpr std::uint64_t kProbeBytes = 256 * MiB;  // each way

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
  CudaAccelerator() : context_(std::make_shared<CudaContext>(0)), facts_(facts_of(context_->device.facts())) {
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
  std::shared_ptr<UpdateKernels> make_update_kernels() override { return make_cuda_update_kernels(context_); }
  std::string algorithms() const override { return context_->products.to_json(); }
  std::size_t algorithm_count() const override { return context_->products.size(); }
  bool use_algorithms(const std::string& text) override { return context_->products.from_json(text); }

 private:
  std::shared_ptr<CudaContext> context_;
  AcceleratorFacts facts_;
};

std::unique_ptr<Accelerator> open() { return std::make_unique<CudaAccelerator>(); }

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

void announce() { announce_accelerators({.open = &open, .list = &list, .measure = &measure}); }

}  // namespace transload::cuda
