// CudaContext: what the CUDA kernels of a run share: the device, the stream that they run in, the products' algorithms.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/products.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/cuda_stream.h"

namespace transload::cuda {

struct CudaContext {
  explicit CudaContext(int ordinal)
      : device(ordinal), products(name(), kernels::cuda::product_workspace_bytes(device.facts().major)) {}
  std::string name() const;
  cudaStream_t stream() const { return compute->get(); }

  CudaDevice device;
  kernels::cuda::Products products;
  CudaStream* compute = nullptr;  ///< while a session lives
};

/// Device memory of kernels beside the arena and, where asked for, host memory that copies go through.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  CudaBuffer(CudaContext& context, std::uint64_t bytes, bool with_host);
  bool taken() const { return device_ != nullptr; }
  std::uint64_t bytes() const { return bytes_; }
  template <class T = std::byte>
  T* device() const {
    return reinterpret_cast<T*>(device_->base());
  }
  template <class T = std::byte>
  T* host() const {
    return reinterpret_cast<T*>(host_->base());
  }
  /// All of it, in the stream.
  void to_device(cudaStream_t stream) const;
  void to_host(cudaStream_t stream) const;

 private:
  std::uint64_t bytes_ = 0;
  std::unique_ptr<TierMemory> device_, host_;
};

/// In the stream, within the device or between it and the host.
void copy_async(void* to, const void* from, std::uint64_t bytes, cudaStream_t stream);
void zero_async(void* at, std::uint64_t bytes, cudaStream_t stream);

}  // namespace transload::cuda
