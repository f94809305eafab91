// Layout: parameters → chunks → blocks. Pure arithmetic, no memory.
//
// Parameters come in the order of their first use. In a chunk each parameter piece starts on a multiple of 128
// elements (kRun); a parameter is cut only at multiples of 1024 elements (kTile) from its own start. A chunk holds at
// most chunk_bytes of weight plane. Frozen and trainable parameters never share a chunk. Every element of every
// parameter lies in exactly one piece; zero-size parameters have no piece. 64-bit throughout.
//
// Of each chunk a rank holds one shard: 1/count of its elements rounded up to a run, ascending by rank; what is left
// over at the end of the last shards is padding. Planes hold the shard, or the whole chunk, padding included.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/trace_types.h"

namespace transload {

inline constexpr std::uint64_t kRun = 128;    ///< elements; alignment of parameters, grain of the gradient norm
inline constexpr std::uint64_t kTile = 1024;  ///< elements; grain of cuts inside a parameter

struct ParamSpec {
  std::string name;                  ///< Hugging Face name, unique
  std::vector<std::uint64_t> shape;  ///< row-major; empty: one element
  bool frozen = false;
  std::uint64_t elements() const;
  std::uint64_t rows() const;     ///< shape[0] for two or more dimensions, else 1
  std::uint64_t columns() const;  ///< elements() / rows(), 0 when empty
};

/// A run of one parameter in one chunk.
struct Piece {
  ParamId param;
  ChunkId chunk;
  std::uint64_t param_begin = 0;  ///< first element, from the parameter's start (multiple of kTile)
  std::uint64_t chunk_begin = 0;  ///< first element, from the chunk's start (multiple of kRun)
  std::uint64_t count = 0;        ///< elements
};

struct Chunk {
  std::uint64_t elements = 0;  ///< with padding; multiple of kRun
  bool frozen = false;
  std::vector<Piece> pieces;
};

/// A plane is data: which arrays a chunk has.
struct PlaneSpec {
  std::string name;  ///< DESIGN's words: weight, residue, moment1, moment2, gradient, partial, gathered, local
  Dtype dtype = Dtype::f32;
  bool durable = true;
  bool for_frozen = false;  ///< frozen chunks have it too
  bool whole = false;       ///< of all ranks' elements, not of this rank's shard
};
/// weight, residue (bf16 only), moment1, moment2, gradient, and partial where `with_partial` (sums of several
/// contributions before rounding: gradient dtype bf16 and tied weights or accumulation). Where ranks share chunks
/// (`sharded`) also gathered, the weights of all ranks, and local, this rank's gradient of all of them; both are whole,
/// and so is partial.
std::vector<PlaneSpec> training_planes(Dtype weights, Dtype gradients, bool with_partial, bool sharded = false);

/// Who holds which part of every chunk.
struct Shards {
  std::uint32_t rank = 0, count = 1;
};

class Layout {
 public:
  /// InputError: chunk_bytes below one tile, duplicate names.
  Layout(std::vector<ParamSpec> params, std::vector<PlaneSpec> planes, std::uint64_t chunk_bytes, Shards shards = {});

  const std::vector<ParamSpec>& params() const { return params_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::vector<PlaneSpec>& planes() const { return planes_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  Dtype weight_dtype() const { return planes_[0].dtype; }
  const ParamSpec& param(ParamId p) const { return params_[p.value]; }
  const Chunk& chunk(ChunkId c) const { return chunks_[c.value]; }
  /// InputError when there is none.
  ParamId find(std::string_view name) const;

  /// Pieces of a parameter, ascending param_begin; they cover it exactly.
  std::span<const Piece> pieces(ParamId p) const;

  const Shards& shards() const { return shards_; }
  /// Elements of each rank's shard of a chunk, padding included; a multiple of kRun.
  std::uint64_t shard_elements(ChunkId c) const;
  /// What this rank's shard has of the chunk's pieces; chunk_begin counts from the shard's start. Cuts fall on runs.
  std::span<const Piece> shard_pieces(ChunkId c) const { return shard_pieces_[c.value]; }
  /// The same of any rank's shard.
  std::vector<Piece> shard_pieces(ChunkId c, std::uint32_t rank) const;
  /// Plane index by name; -1 when the layout has none.
  int plane(std::string_view name) const;
  /// The block of a chunk's plane; invalid() where the chunk does not have it (frozen, or plane == -1).
  BlockId block(ChunkId c, int plane) const;
  /// Blocks of all chunks, in BlockId order: chunk-major, planes in order. Kept inputs are appended by the trainer.
  const std::vector<BlockSpec>& blocks() const { return blocks_; }
  ChunkId chunk_of(BlockId b) const;  ///< of a block of this layout
  int plane_of(BlockId b) const;

  /// Canonical JSON of names, shapes, frozen flags, planes, chunk size and shards; from_json gives the same layout
  /// back.
  std::string to_json() const;
  static Layout from_json(std::string_view text);

 private:
  std::vector<ParamSpec> params_;
  std::vector<PlaneSpec> planes_;
  std::uint64_t chunk_bytes_;
  Shards shards_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<Piece>> pieces_;        // by param
  std::vector<std::vector<Piece>> shard_pieces_;  // by chunk
  std::vector<std::vector<BlockId>> block_ids_;   // by chunk, plane
  std::vector<BlockSpec> blocks_;
  std::vector<std::pair<ChunkId, int>> origin_;  // by block
};

/// Grain of arenas for a chunk size: a power of two, at least 4 KiB, at most 256 KiB, about an eighth of a chunk.
std::uint64_t frame_bytes_for(std::uint64_t chunk_bytes);

}  // namespace transload
