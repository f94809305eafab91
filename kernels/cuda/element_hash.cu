#include "kernels/cuda/element_hash.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

unsigned blocks_of_tiles(std::int64_t n) { return blocks_for(n, kHashTile * kTilesOfBlock); }

}  // namespace

void forget_changed(const bf16* weight, std::int64_t n, const std::uint64_t* known, std::int16_t* residue,
                    cudaStream_t stream) {
  launch("forget_changed", forget_tiles, blocks_of_tiles(n), kHashThreads, 0, stream, weight, n, known, residue);
}

void remember(const bf16* weight, std::int64_t n, std::uint64_t* known, cudaStream_t stream) {
  launch("remember", remember_tiles, blocks_of_tiles(n), kHashThreads, 0, stream, weight, n, known);
}

}  // namespace transload::kernels::cuda
