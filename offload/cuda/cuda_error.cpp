#include "offload/cuda/cuda_error.h"

#include <fmt/format.h>

#include "base/error.h"

namespace transload::cuda {

std::string refusal(cudaError_t result, const char* operation, const std::string& what) {
  return fmt::format("CUDA refused {} ({}): {} ({}).", operation, what, cudaGetErrorString(result),
                     cudaGetErrorName(result));
}

void check(cudaError_t result, const char* operation, const std::string& what) {
  if (result == cudaSuccess) return;
  throw Error(refusal(result, operation, what) + " The store stays as last committed.");
}

}  // namespace transload::cuda
