// TensorState: AdamW's state of tensors that a caller owns, in chunks of blocks, and the operations on it. Tensors of
// one type share a layout (their planes are the same); the layouts' blocks are numbered one after the other.
//
// Planes: moment1 and moment2 (fp32 or bf16); `residue` beside a bf16 tensor; `master` beside an fp16 one. The weight
// plane is the caller's. In memory, outside the budget: a hash a tile of every bf16 tensor (8 bytes for 1024 elements).
// Threading: one issuing thread; a chunk's tiles are updated in parallel by oneTBB.
#pragma once

#include <cstdint>
#include <vector>

#include "chunk/layout.h"
#include "engine/block_access.h"
#include "optim/tile_update.h"
#include "transload/offloaded_adamw.h"

namespace transload {

Dtype dtype_of(ElementType type);

class TensorState {
 public:
  /// InputError: duplicate names, chunk_elements not a multiple of 1024.
  TensorState(const std::vector<OptimizerTensor>& tensors, Dtype moments, std::uint64_t seed,
              std::uint64_t chunk_elements);

  const std::vector<BlockSpec>& blocks() const { return blocks_; }
  std::size_t chunks() const { return chunks_.size(); }
  std::uint64_t table_bytes() const;
  std::size_t tensors() const { return tensors_.size(); }
  const OptimizerTensor& tensor(std::size_t i) const { return tensors_[i].spec; }

  std::uint64_t step_count(std::size_t i) const { return tensors_[i].steps; }
  void set_step_count(std::size_t i, std::uint64_t steps) { tensors_[i].steps = steps; }

  /// A step of these tensors begins: counts go up, coefficients are made. Null terms are tensors that have no part.
  void begin_step(const std::vector<TensorStep>& steps);
  /// Chunks that the step touches, in the order of the step.
  std::vector<std::size_t> active_chunks() const;
  /// The accesses of a step over these chunks.
  Trace trace(const std::vector<std::size_t>& chunks) const;
  void update_chunk(std::size_t chunk, BlockAccess& access, Stream& stream);
  /// Tensors of the step whose chunks are all among the first `done` of `chunks`; in `torn` those with some.
  std::vector<std::size_t> updated(const std::vector<std::size_t>& chunks, std::size_t done,
                                   std::vector<std::size_t>* torn) const;

  /// See OffloadedAdamW.
  void read(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const void* weight,
            float* out, BlockAccess& access, Stream& stream) const;
  void write(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const float* in,
             void* weight, BlockAccess& access, Stream& stream);
  void reset(std::size_t tensor, BlockAccess& access, Stream& stream);

 private:
  struct Tensor {
    OptimizerTensor spec;
    std::size_t kind = 0;
    ParamId param;
    std::uint64_t steps = 0;
    std::vector<std::uint64_t> hashes;  ///< by tile; bf16 only
    const TensorStep* step = nullptr;   ///< of the step under way
    TensorUpdate update;
  };
  struct Kind {
    Layout layout;
    std::vector<std::size_t> tensors;  ///< by ParamId
    std::uint32_t first_block = 0;
    std::size_t first_chunk = 0;
    int low, moment1, moment2;  ///< planes of the layout; low −1: none
  };
  struct ChunkRef {
    std::size_t kind;
    ChunkId id;
  };
  using Planes = TilePlanes;

  BlockId block(const Kind& kind, ChunkId chunk, int plane) const;
  int plane_of(const Kind& kind, StatePlane plane) const;
  void check_range(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count) const;
  void update_tiles(const Kind& kind, const Chunk& chunk, Planes planes, std::uint64_t begin, std::uint64_t end);
  /// Calls fn(planes, first, n) for each tile of [first, first + count), the plane pinned.
  template <class Fn>
  void for_each_tile(std::size_t tensor, int plane, AccessKind how, std::uint64_t first, std::uint64_t count,
                     BlockAccess& access, Stream& stream, Fn&& fn) const;

  Dtype moments_;
  std::uint64_t seed_;
  std::vector<Tensor> tensors_;
  std::vector<Kind> kinds_;
  std::vector<ChunkRef> chunks_;
  std::vector<BlockSpec> blocks_;
};

}  // namespace transload
