// The tests of the CUDA kernels (tests/kernels_cuda) as nvcc compiled them, on a real device. Without one they are
// skipped, but a launch must fail with the kernel's name.
#define CATCH_CONFIG_RUNNER
#include <cuda_runtime.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels_cuda/device_memory.h"

namespace transload::kernels::test {
namespace {

std::map<std::size_t, std::vector<void*>>& free_blocks() {
  static std::map<std::size_t, std::vector<void*>> blocks;
  return blocks;
}

/// 0: the error names the kernel.
int launch_without_device() {
  try {
    cuda::narrow(nullptr, nullptr, 1, nullptr);
  } catch (const Error& error) {
    if (std::strstr(error.what(), "narrow") != nullptr) return 0;
    std::printf("the error does not name the kernel: %s\n", error.what());
    return 1;
  }
  std::printf("a launch without a device did not fail\n");
  return 1;
}

}  // namespace

void* take_mapped(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(bytes < 256 ? std::size_t{256} : bytes);
  auto& blocks = free_blocks()[size];
  if (blocks.empty()) {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, size, cudaHostAllocMapped) != cudaSuccess) throw std::bad_alloc();
    return memory;
  }
  void* const memory = blocks.back();
  blocks.pop_back();
  return memory;
}
void give_back_mapped(void* memory, std::size_t bytes) {
  free_blocks()[std::bit_ceil(bytes < 256 ? std::size_t{256} : bytes)].push_back(memory);
}

}  // namespace transload::kernels::test

int main(int argc, char** argv) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // tests read what a launch wrote
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::printf("skipped: CUDA kernels on a device: %s\n",
                found == cudaSuccess ? "there is none" : cudaGetErrorString(found));
    return transload::kernels::test::launch_without_device();
  }
  return Catch::Session().run(argc, argv);
}
