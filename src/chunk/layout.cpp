#include "chunk/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"

namespace transload {

namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 60;  // times 4 bytes still fits in 64 bits
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 31;    // ids have 32 bits

/// Packs pieces into chunks: one chunk is open for trainable and one for frozen parameters, so that a few frozen
/// parameters between trainable ones do not end chunks early.
class Packer {
 public:
  Packer(std::vector<Chunk>& chunks, std::uint64_t capacity) : chunks_(chunks), capacity_(capacity) {}

  void place(ParamId id, const ParamSpec& param, std::vector<Piece>& pieces) {
    const std::uint64_t elements = param.elements();
    for (std::uint64_t begin = 0; begin < elements;) {
      const std::uint64_t room = room_in(param.frozen);
      const std::uint64_t left = elements - begin;
      const std::uint64_t count = left <= room ? left : room / kTile * kTile;
      if (count == 0) {
        open_chunk(param.frozen);
        continue;
      }
      const std::uint64_t chunk_id = static_cast<std::uint64_t>(open_[param.frozen]);
      Chunk& chunk = chunks_[chunk_id];
      const Piece piece{id, ChunkId(chunk_id), begin, chunk.elements, count};
      chunk.pieces.push_back(piece);
      chunk.elements = round_up(chunk.elements + count, kRun);
      pieces.push_back(piece);
      begin += count;
    }
  }

 private:
  std::uint64_t room_in(bool frozen) const {
    if (open_[frozen] < 0) return 0;
    return capacity_ - chunks_[static_cast<std::size_t>(open_[frozen])].elements;
  }
  void open_chunk(bool frozen) {
    open_[frozen] = static_cast<std::int64_t>(chunks_.size());
    chunks_.push_back({});
    chunks_.back().frozen = frozen;
  }

  std::vector<Chunk>& chunks_;
  const std::uint64_t capacity_;  // elements, a multiple of kRun
  std::int64_t open_[2] = {-1, -1};
};

/// The pieces of [begin, begin + count) of a chunk, counted from there.
std::vector<Piece> clip(const Chunk& chunk, std::uint64_t begin, std::uint64_t count) {
  std::vector<Piece> out;
  for (const Piece& piece : chunk.pieces) {
    const std::uint64_t from = std::max(begin, piece.chunk_begin);
    const std::uint64_t to = std::min(begin + count, piece.chunk_begin + piece.count);
    if (from >= to) continue;
    out.push_back({piece.param, piece.chunk, piece.param_begin + (from - piece.chunk_begin), from - begin, to - from});
  }
  return out;
}

void check_names(const std::vector<ParamSpec>& params) {
  std::unordered_set<std::string_view> names;
  for (const ParamSpec& p : params)
    if (!names.insert(p.name).second)
      throw InputError(fmt::format("Two parameters are called '{}'. Names must be unique.", p.name));
}

void check_sizes(const std::vector<ParamSpec>& params, std::size_t planes, std::uint64_t capacity) {
  std::uint64_t total = 0;
  for (const ParamSpec& p : params) {
    total += p.elements();
    if (total > kMaxElements) throw InputError("The parameters together have more than 2^60 elements.");
  }
  const std::uint64_t chunks = total / (capacity / kTile * kTile) + params.size();
  if (chunks > kMaxBlocks / std::max<std::size_t>(planes, 1))
    throw InputError(fmt::format(
        "{} elements in chunks of {} elements would be more than 2^31 blocks. Choose larger chunks.", total, capacity));
}

Dtype dtype_from(const std::string& name) {
  for (const Dtype d : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::i16})
    if (name_of(d) == name) return d;
  throw InputError(fmt::format("The layout names an unknown element type '{}'.", name));
}

}  // namespace

std::uint64_t ParamSpec::elements() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t n = 1;
  for (const std::uint64_t d : shape) {
    if (n > kMaxElements / d) throw InputError(fmt::format("Parameter '{}' has more than 2^60 elements.", name));
    n *= d;
  }
  return n;
}

std::uint64_t ParamSpec::rows() const { return shape.size() >= 2 ? shape[0] : 1; }

std::uint64_t ParamSpec::columns() const {
  const std::uint64_t n = elements();
  return n == 0 ? 0 : n / rows();
}

std::vector<PlaneSpec> training_planes(Dtype weights, Dtype gradients, bool with_partial, bool sharded) {
  std::vector<PlaneSpec> planes;
  planes.push_back({"weight", weights, true, true});
  // A frozen chunk keeps its residue: the fp32 master stays exact for export and for unfreezing, and a step never
  // moves it.
  if (weights == Dtype::bf16) planes.push_back({"residue", Dtype::i16, true, true});
  planes.push_back({"moment1", Dtype::f32, true, false});
  planes.push_back({"moment2", Dtype::f32, true, false});
  planes.push_back({"gradient", gradients, false, false});
  if (with_partial) planes.push_back({"partial", Dtype::f32, false, false, sharded});
  if (sharded) {
    planes.push_back({"local", gradients, false, false, true});
    planes.push_back({"gathered", weights, false, true, true});
  }
  return planes;
}

Layout::Layout(std::vector<ParamSpec> params, std::vector<PlaneSpec> planes, std::uint64_t chunk_bytes, Shards shards)
    : params_(std::move(params)),
      planes_(std::move(planes)),
      chunk_bytes_(chunk_bytes),
      shards_(shards),
      pieces_(params_.size()) {
  if (shards_.count == 0 || shards_.rank >= shards_.count)
    throw InputError(fmt::format("Rank {} of {} ranks.", shards_.rank, shards_.count));
  if (planes_.empty()) throw InputError("A layout needs at least the weight plane.");
  const std::uint64_t capacity = chunk_bytes_ / size_of(weight_dtype()) / kRun * kRun;
  if (capacity < kTile)
    throw InputError(fmt::format("A chunk of {} bytes is smaller than one tile of {} elements ({} bytes of {}).",
                                 chunk_bytes_, kTile, kTile * size_of(weight_dtype()), name_of(weight_dtype())));
  check_names(params_);
  check_sizes(params_, planes_.size(), capacity);

  Packer packer(chunks_, capacity);
  for (std::size_t p = 0; p < params_.size(); ++p) packer.place(ParamId(p), params_[p], pieces_[p]);
  for (std::size_t c = 0; c < chunks_.size(); ++c) shard_pieces_.push_back(shard_pieces(ChunkId(c), shards_.rank));

  block_ids_.assign(chunks_.size(), std::vector<BlockId>(planes_.size()));
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    for (std::size_t q = 0; q < planes_.size(); ++q) {
      const PlaneSpec& plane = planes_[q];
      if (chunks_[c].frozen && !plane.for_frozen) continue;
      const std::uint64_t elements = shard_elements(ChunkId(c)) * (plane.whole ? shards_.count : 1);
      block_ids_[c][q] = BlockId(blocks_.size());
      blocks_.push_back(
          {fmt::format("chunk {} {}", c, plane.name), elements * size_of(plane.dtype), plane.durable, plane.name});
      origin_.emplace_back(ChunkId(c), static_cast<int>(q));
    }
  }
}

ParamId Layout::find(std::string_view name) const {
  for (std::size_t p = 0; p < params_.size(); ++p)
    if (params_[p].name == name) return ParamId(p);
  throw InputError(fmt::format("There is no parameter called '{}'.", name));
}

std::span<const Piece> Layout::pieces(ParamId p) const { return pieces_[p.value]; }

std::uint64_t Layout::shard_elements(ChunkId c) const {
  return round_up(ceil_div(chunk(c).elements, shards_.count), kRun);
}

std::vector<Piece> Layout::shard_pieces(ChunkId c, std::uint32_t rank) const {
  const std::uint64_t elements = shard_elements(c);
  return clip(chunk(c), rank * elements, elements);
}

int Layout::plane(std::string_view name) const {
  for (std::size_t q = 0; q < planes_.size(); ++q)
    if (planes_[q].name == name) return static_cast<int>(q);
  return -1;
}

BlockId Layout::block(ChunkId c, int plane) const {
  if (plane < 0) return {};
  return block_ids_[c.value][static_cast<std::size_t>(plane)];
}

ChunkId Layout::chunk_of(BlockId b) const {
  TRANSLOAD_CHECK(b.value < origin_.size(), "block {} of {}", b.value, origin_.size());
  return origin_[b.value].first;
}

int Layout::plane_of(BlockId b) const {
  TRANSLOAD_CHECK(b.value < origin_.size(), "block {} of {}", b.value, origin_.size());
  return origin_[b.value].second;
}

std::string Layout::to_json() const {
  nlohmann::json root;
  root["chunk_bytes"] = chunk_bytes_;
  root["params"] = nlohmann::json::array();
  for (const ParamSpec& p : params_)
    root["params"].push_back({{"name", p.name}, {"shape", p.shape}, {"frozen", p.frozen}});
  root["planes"] = nlohmann::json::array();
  for (const PlaneSpec& q : planes_)
    root["planes"].push_back({{"name", q.name},
                              {"dtype", std::string(name_of(q.dtype))},
                              {"durable", q.durable},
                              {"for_frozen", q.for_frozen},
                              {"whole", q.whole}});
  root["shards"] = {{"rank", shards_.rank}, {"count", shards_.count}};
  try {
    return root.dump();
  } catch (const nlohmann::json::exception& e) {
    throw InputError(fmt::format("A parameter's name is not UTF-8: {}.", e.what()));
  }
}

Layout Layout::from_json(std::string_view text) {
  try {
    const auto root = nlohmann::json::parse(text);
    std::vector<ParamSpec> params;
    for (const auto& p : root.at("params"))
      params.push_back({p.at("name").get<std::string>(), p.at("shape").get<std::vector<std::uint64_t>>(),
                        p.at("frozen").get<bool>()});
    std::vector<PlaneSpec> planes;
    for (const auto& q : root.at("planes"))
      planes.push_back({q.at("name").get<std::string>(), dtype_from(q.at("dtype").get<std::string>()),
                        q.at("durable").get<bool>(), q.at("for_frozen").get<bool>(), q.value("whole", false)});
    const auto shards = root.value("shards", nlohmann::json::object());
    return Layout(std::move(params), std::move(planes), root.at("chunk_bytes").get<std::uint64_t>(),
                  {shards.value("rank", 0U), shards.value("count", 1U)});
  } catch (const nlohmann::json::exception& e) {
    throw InputError(fmt::format("The layout's JSON cannot be read: {}.", e.what()));
  }
}

std::uint64_t frame_bytes_for(std::uint64_t chunk_bytes) {
  std::uint64_t frame = 4 * KiB;
  while (frame * 2 <= chunk_bytes / 8 && frame < 256 * KiB) frame *= 2;
  return frame;
}

}  // namespace transload
