// Memory that both the kernels and the tests may touch: the heap under the stand-in, mapped host memory on a device
// (where launches are made to wait, tests/cuda_device), so that the same tests run in both places.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace transload::kernels::test {

#if defined(TRANSLOAD_CUDA_STAND_IN)
template <class T>
using DeviceAllocator = std::allocator<T>;
#else
/// From and back to lists of blocks of a power of two bytes; tests/cuda_device/main.cpp.
void* take_mapped(std::size_t bytes);
void give_back_mapped(void* memory, std::size_t bytes);

template <class T>
struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <class U>
  DeviceAllocator(const DeviceAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(take_mapped(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t n) { give_back_mapped(memory, n * sizeof(T)); }
  bool operator==(const DeviceAllocator&) const = default;
};
#endif

template <class T>
using DeviceVector = std::vector<T, DeviceAllocator<T>>;

}  // namespace transload::kernels::test
