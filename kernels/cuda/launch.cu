#include "kernels/cuda/launch.h"

#include <string>

#include "base/error.h"

namespace transload::kernels::cuda {
namespace {

std::string text(dim3 size) {
  return std::to_string(size.x) + "×" + std::to_string(size.y) + "×" + std::to_string(size.z);
}

}  // namespace

void launch_failed(const char* kernel, dim3 grid, dim3 block, cudaError_t error) {
  std::string message = std::string("CUDA: launching ") + kernel + " (" + text(grid) + " blocks of " + text(block) +
                        " threads) failed: " + cudaGetErrorString(error) + " (" + std::to_string(error) + ").";
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    message += " This build has no kernel for this device: build with its architecture (CMAKE_CUDA_ARCHITECTURES).";
  }
  throw Error(message);
}

}  // namespace transload::kernels::cuda
