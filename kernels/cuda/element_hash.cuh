// The hash of kernels/cpu/element_hash.h, a warp for each tile of 1024 elements. Sums of integers: any order is the
// same.
#pragma once

#include "kernels/cuda/elements.cuh"

namespace transload::kernels::cuda {

inline constexpr int kHashTile = 1024;
inline constexpr int kHashThreads = 256;
inline constexpr int kTilesOfBlock = kHashThreads / 32;

using Hash = unsigned long long;

__device__ inline Hash mixed(Hash position, unsigned element) {
  Hash z = (position << 16 | element) + 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

/// In every lane: the hash of `count` elements that the warp shares.
__device__ inline Hash tile_hash(const bf16* tile, int count) {
  Hash sum = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) sum += mixed(static_cast<Hash>(i), tile[i].bits);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  return sum == 0 ? 1 : sum;
}

/// Where a warp's tile begins, and its elements (none behind the end).
struct TileOfWarp {
  std::int64_t number, first;
  int count;
  __device__ explicit TileOfWarp(std::int64_t n)
      : number(static_cast<std::int64_t>(blockIdx.x) * kTilesOfBlock + threadIdx.x / 32),
        first(number * kHashTile),
        count(static_cast<int>(n - first < 0           ? 0
                               : n - first < kHashTile ? n - first
                                                       : kHashTile)) {}
};

static __global__ __launch_bounds__(kHashThreads) void forget_tiles(const bf16* weight, std::int64_t n,
                                                                    const std::uint64_t* known, std::int16_t* residue) {
  const TileOfWarp tile(n);
  if (tile.count == 0 || tile_hash(weight + tile.first, tile.count) == known[tile.number]) return;
  for (int i = static_cast<int>(threadIdx.x % 32); i < tile.count; i += 32) residue[tile.first + i] = 0;
}

static __global__ __launch_bounds__(kHashThreads) void remember_tiles(const bf16* weight, std::int64_t n,
                                                                      std::uint64_t* known) {
  const TileOfWarp tile(n);
  if (tile.count == 0) return;
  const Hash hash = tile_hash(weight + tile.first, tile.count);
  if (threadIdx.x % 32 == 0) known[tile.number] = hash;
}

}  // namespace transload::kernels::cuda
