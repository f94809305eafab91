#include "offload/cuda/cuda_error.h"

#include <fmt/format.h>

#include "base/error.h"

namespace transload::cuda {

void check(cudaError_t result, const char* operation, const std::string& what) {
  if (result == cudaSuccess) return;
  throw Error(fmt::format("CUDA refused {} ({}): {} ({}). The store stays as last committed.", operation, what,
                          cudaGetErrorString(result), cudaGetErrorName(result)));
}

}  // namespace transload::cuda
