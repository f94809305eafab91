// Elementwise kernels over arrays of any length that start anywhere. An operation `op` computes elements by
// op.run<kCount>(i): kCount = 8 where all its arrays have element i on a 16-byte boundary, else 1. An element's bits do
// not depend on which it was.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/elements.cuh"

namespace transload::kernels::cuda {

/// Elements [0, head) one by one, then `groups` of eight, then the rest one by one.
struct Span {
  std::int64_t n = 0, head = 0, groups = 0;
};
struct Operand {
  const void* data;  ///< may be null
  int element_bytes;
};
template <class T>
Operand operand(const T* data) {
  return {data, static_cast<int>(sizeof(T))};
}

/// Groups start at the first element that lies on a 16-byte boundary in all arrays; without one there are no groups.
inline Span span_of(std::int64_t n, std::initializer_list<Operand> arrays) {
  for (std::int64_t head = 0; head < kGroup && head < n; ++head) {
    bool all = true;
    for (const Operand& a : arrays) {
      const auto address = reinterpret_cast<std::uintptr_t>(a.data);
      const auto distance = static_cast<std::uintptr_t>(head * a.element_bytes);
      all = all && (a.data == nullptr || (address + distance) % 16 == 0);
    }
    if (all) return {n, head, (n - head) / kGroup};
  }
  return {n, n, 0};
}

inline constexpr int kElementThreads = 256;

/// One thread a group and one a single element.
template <class Op>
__global__ __launch_bounds__(kElementThreads) void elementwise(Op op, Span span) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i < span.groups) op.template run<kGroup>(span.head + i * kGroup);
  if (i < span.n - span.groups * kGroup) op.template run<1>(i < span.head ? i : i + span.groups * kGroup);
}

template <class Op>
void launch_elementwise(const char* name, const Op& op, const Span& span, cudaStream_t stream) {
  const std::int64_t singles = span.n - span.groups * kGroup;
  const std::int64_t threads = span.groups > singles ? span.groups : singles;
  launch(name, elementwise<Op>, blocks_for(threads, kElementThreads), kElementThreads, 0, stream, op, span);
}

}  // namespace transload::kernels::cuda
