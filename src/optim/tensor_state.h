// TensorState: AdamW's state of tensors that a caller owns, in chunks of blocks, and the operations on it. Tensors of
// one type share a layout (their planes are the same); the layouts' blocks are numbered one after the other.
//
// Planes: moment1 and moment2 (fp32 or bf16); `residue` beside a bf16 tensor; `master` beside an fp16 one. The weight
// plane is the caller's. In memory, outside the budget: a hash a tile of every bf16 tensor (8 bytes for 1024 elements).
//
// Tensors on a device have layouts of their own. A chunk of theirs is staged (blocks as any other; weights and
// gradients come and go through a slot of memory of the host) or resident: its planes, and the hashes of its tiles, lie
// in the device's arena, and it has no blocks. The first chunks of fp32 and bf16 layouts are resident, as many as fit.
// Threading: one issuing thread; a chunk's tiles are updated in parallel by oneTBB.
#pragma once

#include <cstdint>
#include <vector>

#include "chunk/layout.h"
#include "engine/block_access.h"
#include "optim/tensor_device.h"
#include "optim/tile_update.h"
#include "transload/offloaded_adamw.h"

namespace transload {

Dtype dtype_of(ElementType type);

/// What came down of a chunk on a device. Each array begins where the chunk does.
struct StagingSlot {
  /// Bytes an element of a gradient, whatever its type.
  static constexpr std::uint64_t kGradientRoom = 4;
  std::byte* weights = nullptr;
  std::byte* gradients = nullptr;
};

class TensorState {
 public:
  /// InputError: duplicate names, chunk_elements not a multiple of 1024, two devices. `device_memory`: the most bytes
  /// that resident chunks may take.
  TensorState(const std::vector<OptimizerTensor>& tensors, Dtype moments, std::uint64_t seed,
              std::uint64_t chunk_elements, std::uint64_t device_memory);

  const std::vector<BlockSpec>& blocks() const { return blocks_; }
  std::size_t chunks() const { return chunks_.size(); }
  std::uint64_t table_bytes() const;
  std::size_t tensors() const { return tensors_.size(); }
  const OptimizerTensor& tensor(std::size_t i) const { return tensors_[i].spec; }

  std::uint64_t step_count(std::size_t i) const { return tensors_[i].steps; }
  void set_step_count(std::size_t i, std::uint64_t steps) { tensors_[i].steps = steps; }

  // Tensors on a device.

  /// Of the tensors on a device; kOnHost where there are none.
  int device() const { return device_number_; }
  bool on_device(std::size_t chunk) const { return kinds_[chunks_[chunk].kind].on_device; }
  bool resident(std::size_t chunk) const { return chunks_[chunk].id.value < kinds_[chunks_[chunk].kind].resident; }
  std::uint64_t resident_bytes() const { return resident_bytes_; }  ///< of the arena
  std::uint64_t resident_state_bytes() const;                       ///< of planes in it
  /// Memory of the host that one staged chunk takes; also enough for a plane of a resident one and its hashes.
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  bool any_staged() const;
  StagingSlot slot_at(std::byte* memory) const { return {memory, memory + slot_weight_bytes_}; }
  /// Before the first use of a resident chunk: its arena, zeroed here, and slot_bytes() that planes are shown in.
  void attach(TensorDevice* device, std::byte* arena, std::byte* window);
  /// Issues the copies of a chunk's weights and gradients down into a slot; of its weights up; its update on the
  /// device.
  void fetch(std::size_t chunk, const StagingSlot& slot);
  void send(std::size_t chunk, const StagingSlot& slot);
  void update_resident(std::size_t chunk) const;
  /// What those moved, bytes and copies.
  struct Moved {
    std::uint64_t down_bytes = 0, up_bytes = 0, down_copies = 0, up_copies = 0;
  };
  const Moved& moved() const { return moved_; }

  /// A step of these tensors begins: counts go up, coefficients are made. Null terms are tensors that have no part.
  /// InputError, nothing changed: a tensor that is not there or listed twice, an fp16 gradient of resident chunks.
  void begin_step(const std::vector<TensorStep>& steps);
  /// Chunks that the step touches, in the order of the step.
  std::vector<std::size_t> active_chunks() const;
  /// The accesses of a step over these chunks; resident ones have none.
  Trace trace(const std::vector<std::size_t>& chunks) const;
  /// `slot`: of a staged chunk; null for tensors of the host.
  void update_chunk(std::size_t chunk, BlockAccess& access, Stream& stream, const StagingSlot* slot);
  /// Tensors of the step whose chunks are all in `done`; in `torn` others with some in `begun` (both ascending).
  std::vector<std::size_t> updated(const std::vector<std::size_t>& begun, const std::vector<std::size_t>& done,
                                   std::vector<std::size_t>* torn) const;

  /// See OffloadedAdamW.
  void read(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const void* weight,
            float* out, BlockAccess& access, Stream& stream);
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
    std::int64_t first_block = 0;      ///< less the blocks that resident chunks do not have
    std::size_t first_chunk = 0;
    int low, moment1, moment2;  ///< planes of the layout; low −1: none
    bool on_device = false;
    std::uint32_t resident = 0;  ///< so many first chunks are on the device
  };
  struct ChunkRef {
    std::size_t kind;
    ChunkId id;
    std::uint64_t arena_begin = 0;  ///< resident: planes in order, then hashes, each on a multiple of 256
  };
  /// A plane of a chunk while it is looked at, and where the hashes of its tiles are.
  struct Shown {
    BlockView view;
    std::uint64_t* known = nullptr;  ///< of the range's first tile; null: the tensor's own
  };
  /// The part of a piece in [first, end) of its tensor.
  struct Range {
    const Piece* piece;
    std::uint64_t from, to;
    std::uint64_t chunk_begin() const { return piece->chunk_begin + (from - piece->param_begin); }
    std::uint64_t chunk_end() const { return chunk_begin() + (to - from); }
  };
  using Planes = TilePlanes;

  BlockId block(const Kind& kind, ChunkId chunk, int plane) const;
  int plane_of(const Kind& kind, StatePlane plane) const;
  void check_range(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count) const;
  void add_kind(const std::vector<OptimizerTensor>& tensors, ElementType type, bool on_device,
                std::uint64_t chunk_elements, std::uint64_t device_memory);
  void place_chunks(Kind& kind, ElementType type, std::uint64_t device_memory);
  void update_tiles(const Kind& kind, const Chunk& chunk, Planes planes, std::uint64_t begin, std::uint64_t end,
                    const StagingSlot* slot);
  /// Calls fn(tensor, piece) for each piece of the chunk whose tensor is in the step.
  template <class Fn>
  void for_each_part(std::size_t chunk, Fn&& fn) const;
  /// Calls fn(view, at, from, n, known) for each tile of [first, first + count), the plane pinned or shown. `known`:
  /// the tile's hash, null where there are none.
  template <class Fn>
  void for_each_tile(std::size_t tensor, int plane, AccessKind how, std::uint64_t first, std::uint64_t count,
                     BlockAccess& access, Stream& stream, Fn&& fn);
  template <class Fn>
  void for_tiles_of(Tensor& tensor, const Range& range, const Shown& shown, Fn&& fn);

  std::uint64_t tiles_before(const Kind& kind, const Piece& piece) const;
  std::byte* arena_of(const ChunkRef& chunk, int plane) const;
  std::uint64_t* hashes_of(const ChunkRef& chunk) const;
  Shown show(const ChunkRef& chunk, int plane, const Range& range);
  void put_back(const ChunkRef& chunk, int plane, const Range& range, const Shown& shown);

  Dtype moments_;
  std::uint64_t seed_;
  std::vector<Tensor> tensors_;
  std::vector<Kind> kinds_;
  std::vector<ChunkRef> chunks_;
  std::vector<BlockSpec> blocks_;

  int device_number_ = kOnHost;
  std::uint64_t resident_bytes_ = 0, slot_bytes_ = 0, slot_weight_bytes_ = 0;
  TensorDevice* device_ = nullptr;
  std::byte* arena_ = nullptr;
  std::byte* window_ = nullptr;
  Moved moved_;
};

}  // namespace transload
