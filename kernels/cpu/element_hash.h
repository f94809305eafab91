// Whether 16-bit elements are still what they were, by a hash that any number of threads can take together (the warps
// of a GPU; kernels/cuda/element_hash.cuh): the sum modulo 2^64 of SplitMix64's finaliser of each element with its
// position. The finaliser is a bijection, so one element that changes always changes the sum. Never 0 (0 stands for
// "nothing known").
#pragma once

#include <cstddef>
#include <cstdint>

namespace transload::kernels {

std::uint64_t element_hash(const void* data, std::size_t bytes);

}  // namespace transload::kernels
