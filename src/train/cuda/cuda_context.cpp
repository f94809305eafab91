#include "train/cuda/cuda_context.h"

#include <fmt/format.h>

#include "base/size.h"
#include "offload/cuda/cuda_error.h"

namespace transload::cuda {

std::string CudaContext::name() const {
  const DeviceFacts& facts = device.facts();
  return fmt::format("{}, sm_{}{}", facts.name, facts.major, facts.minor);
}

CudaBuffer::CudaBuffer(CudaContext& context, std::uint64_t bytes, bool with_host)
    : bytes_(bytes), device_(context.device.memory(bytes)) {
  if (with_host) host_ = context.device.host_memory(bytes, true);
}

void CudaBuffer::to_device(cudaStream_t stream) const { copy_async(device(), host(), bytes_, stream); }
void CudaBuffer::to_host(cudaStream_t stream) const { copy_async(host(), device(), bytes_, stream); }

void copy_async(void* to, const void* from, std::uint64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync",
        fmt::format("compute stream, {}", format_size(bytes)));
}

void zero_async(void* at, std::uint64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(at, 0, bytes, stream), "cudaMemsetAsync",
        fmt::format("compute stream, {}", format_size(bytes)));
}

}  // namespace transload::cuda
