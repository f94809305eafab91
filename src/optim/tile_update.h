// The update of one tile (at most 1024 elements, from the tensor's start) of a tensor that a caller owns.
//
// The planes of a tile lie in runs (frames); the tensor and its gradient are contiguous. By the tensor's type:
//   fp32  fused AdamW in place
//   bf16  weight + residue; a tile whose content is not what the last step left starts with residue zero
//   fp16  an fp32 master; an element whose rounded master is not what the tensor holds restarts from the tensor
// Moments are fp32, or bf16 rounded stochastically.
#pragma once

#include <cstdint>

#include "base/block_view.h"
#include "base/dtype.h"
#include "kernels/cpu/adamw.h"

namespace transload {

/// What is the same for all tiles of a tensor in a step.
struct TensorUpdate {
  Dtype weight = Dtype::f32, gradient = Dtype::f32, moments = Dtype::f32;
  kernels::AdamwCoefficients coefficients{};
  std::uint64_t stream = 0;  ///< of stochastic rounding, in this step
};

/// Views of a chunk's planes, and where the tile's elements begin in them. `low`: residue or fp16's master, or empty.
struct TilePlanes {
  BlockView low, moment1, moment2;
  std::uint64_t at = 0;
};

/// `first`: the tile's first element from the tensor's start; weight and gradient point at it. `known`: hash of what
/// the last step left (0: none), renewed; bf16 only.
void update_tile(const TensorUpdate& tensor, const TilePlanes& planes, std::uint64_t first, std::uint64_t n,
                 std::byte* weight, const std::byte* gradient, std::uint64_t* known);

/// The hash of what the last step left of a tile, and how it is taken; null where there is none.
struct KnownTile {
  std::uint64_t* value = nullptr;
  std::uint64_t (*hash)(const void* data, std::size_t bytes) = nullptr;
};

/// fp32 masters from weights and the plane, as update_tile would start from.
void read_master(Dtype weight_type, const TilePlanes& planes, std::uint64_t n, const std::byte* weight,
                 const KnownTile& known, float* out);
/// The opposite: sets the plane and, for bf16, `known` to what the rounded masters hash to. `weight` (or null) gets the
/// rounded masters.
void write_master(Dtype weight_type, const TilePlanes& planes, std::uint64_t n, const float* in, std::byte* weight,
                  const KnownTile& known);

}  // namespace transload
