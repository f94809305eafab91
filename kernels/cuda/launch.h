// How kernels are started, by nvcc's runtime or by the tests' stand-in (tests/cuda_stand_in), and the one word of CUDA
// that both cannot share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

// An array of the block: full of 0xCB under the stand-in until somebody writes.
#if defined(TRANSLOAD_CUDA_STAND_IN)
#define TRANSLOAD_SHARED(type, name, count) STAND_IN_SHARED(type, name, count)
#else
#define TRANSLOAD_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace transload::kernels::cuda {

/// Throws Error: "CUDA: launching <kernel> (…) failed: …".
[[noreturn]] void launch_failed(const char* kernel, dim3 grid, dim3 block, cudaError_t error);

/// Starts kernel(args…) in `stream`; returns before it has run. Nothing happens where the grid is empty.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  std::tuple<std::decay_t<Params>...> values(std::forward<Args>(args)...);
#if defined(TRANSLOAD_CUDA_STAND_IN)
  const cudaError_t error = stand_in::enqueue(stream, name, [=] {
    stand_in::launch_fibers({name, grid, block, shared_bytes}, [&] { std::apply(kernel, values); });
  });
#else
  const cudaError_t error = std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream);
      },
      values);
#endif
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // it was this call's: the next one starts clean
    launch_failed(name, grid, block, error);
  }
}

/// Blocks of `size` for n items; 0 for none.
inline unsigned blocks_for(std::int64_t n, std::int64_t size) { return static_cast<unsigned>((n + size - 1) / size); }

}  // namespace transload::kernels::cuda
