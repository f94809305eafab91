#include "train/committed_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace transload {
namespace {

/// Hands a shard's elements on by parameter.
void for_each_piece(const std::vector<Piece>& pieces, const std::byte* data, std::uint64_t element_bytes,
                    const CommittedState::Elements& fn) {
  for (const Piece& piece : pieces)
    fn(piece.param, piece.param_begin, piece.count, data + piece.chunk_begin * element_bytes);
}

/// fp32 masters of a shard, joined in pieces that stay in the cache.
void for_each_joined(const std::vector<Piece>& pieces, const std::byte* weights, const std::byte* residues,
                     const CommittedState::Elements& fn) {
  constexpr std::uint64_t kAtOnce = 16384;
  std::vector<float> masters(kAtOnce);
  for (const Piece& piece : pieces)
    for (std::uint64_t done = 0; done < piece.count;) {
      const std::uint64_t n = std::min(kAtOnce, piece.count - done);
      for (std::uint64_t i = 0; i < n; ++i) {
        bf16 weight = {};
        std::int16_t residue = 0;
        std::memcpy(&weight, weights + (piece.chunk_begin + done + i) * 2, 2);
        std::memcpy(&residue, residues + (piece.chunk_begin + done + i) * 2, 2);
        masters[i] = join_master(weight, residue);
      }
      fn(piece.param, piece.param_begin + done, n, reinterpret_cast<const std::byte*>(masters.data()));
      done += n;
    }
}

const char* plane_of(CommittedState::Array array) {
  using Array = CommittedState::Array;
  return array == Array::moment1 ? "moment1" : array == Array::moment2 ? "moment2" : "weight";
}

/// Whether two commits of one group can be: the same but for the rank.
bool belong_together(CheckpointMeta a, const CheckpointMeta& b, const Layout& a_layout, const Layout& b_layout) {
  a.layout_json = b.layout_json;
  return to_json(a) == to_json(b) && a_layout.chunk_bytes() == b_layout.chunk_bytes() &&
         a_layout.shards().count == b_layout.shards().count && a_layout.blocks().size() == b_layout.blocks().size();
}

}  // namespace

Layout layout_of(const CheckpointMeta& meta, const std::string& where) {
  try {
    return Layout::from_json(meta.layout_json);
  } catch (const InputError& error) {
    throw DamageError(fmt::format("The manifest of {} is damaged: {}", where, error.what()));
  }
}

CommittedState::CommittedState(GroupView view, Progress progress)
    : view_(std::move(view)), layout_(layout_of(view_.meta, view_.where)), progress_(std::move(progress)) {
  if (layout_.shards().count != view_.stores.size())
    throw DamageError(fmt::format("The manifest of {} contradicts the run's list of stores: {} ranks instead of {}.",
                                  view_.where, layout_.shards().count, view_.stores.size()));
  for (std::uint32_t r = 0; r < view_.stores.size(); ++r)
    if (view_.stores[r] != nullptr) check_store(*view_.stores[r], r);
}

void CommittedState::check_store(const Store& store, std::uint32_t rank) const {
  const std::string where = view_.stores.size() == 1 ? view_.where : fmt::format("{}, rank {}", view_.where, rank);
  const auto contradicts = [&](const std::string& what) {
    throw DamageError(fmt::format("The manifest of {} contradicts its own layout: {}.", where, what));
  };
  const CheckpointMeta meta = parse_meta(store.committed().metadata, where);
  const Layout layout = layout_of(meta, where);
  const std::vector<StoredBlock>& stored = store.committed().blocks;
  if (stored.size() < layout.blocks().size())
    contradicts(fmt::format("{} blocks instead of {}", stored.size(), layout.blocks().size()));
  if (meta.step_counts.size() != layout.params().size())
    contradicts(fmt::format("{} step counts for {} parameters", meta.step_counts.size(), layout.params().size()));
  if (layout.weight_dtype() != meta.dtype) contradicts("another dtype of the weights");
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const BlockSpec& spec = layout.blocks()[b];
    if (spec.durable && stored[b].bytes != spec.bytes)
      contradicts(fmt::format("{} has {} bytes instead of {}", spec.name, stored[b].bytes, spec.bytes));
  }
  if (layout.shards().rank != rank) contradicts(fmt::format("it is that of rank {}", layout.shards().rank));
  if (!belong_together(meta, view_.meta, layout, layout_)) contradicts("another commit than the other ranks'");
}

std::vector<ParamId> CommittedState::stream_order() const {
  std::vector<ParamId> order;
  for (const bool frozen : {false, true})
    for (std::size_t p = 0; p < layout_.params().size(); ++p)
      if (layout_.params()[p].frozen == frozen) order.push_back(ParamId(p));
  return order;
}

CommittedState::Requests CommittedState::blocks_of(Array array) const {
  Requests requests;
  const int plane = layout_.plane(plane_of(array));
  const int residue = array == Array::master ? layout_.plane("residue") : -1;
  for (const bool frozen : {false, true})
    for (std::size_t c = 0; c < layout_.chunks().size(); ++c) {
      if (layout_.chunks()[c].frozen != frozen) continue;
      for (std::uint32_t rank = 0; rank < layout_.shards().count; ++rank) {
        if (layout_.shard_pieces(ChunkId(c), rank).empty()) continue;  // padding alone
        for (const int p : {plane, residue})
          if (const BlockId block = layout_.block(ChunkId(c), p); block.valid()) requests.push_back({{rank, block}});
      }
    }
  return requests;
}

void CommittedState::expect(const std::vector<Array>& arrays) {
  done_bytes_ = total_bytes_ = 0;
  for (const Array array : arrays)
    for (const GroupReader::Request& r : blocks_of(array)) total_bytes_ += layout_.blocks()[r.block.block.value].bytes;
}

void CommittedState::count(const RankBlock& block) {
  done_bytes_ += layout_.blocks()[block.block.value].bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

void CommittedState::stream(Array array, const Elements& fn) {
  const bool joined = array == Array::master && layout_.plane("residue") >= 0;
  std::vector<std::byte> weights;
  GroupReader(view_, layout_).read(blocks_of(array), [&](const RankBlock& b, const BlockReader::Content& content) {
    if (content.error) std::rethrow_exception(content.error);
    const std::vector<Piece> pieces = layout_.shard_pieces(layout_.chunk_of(b.block), b.rank);
    if (!joined)
      for_each_piece(pieces, content.bytes, size_of(dtype_of(array)), fn);
    else if (layout_.plane_of(b.block) == layout_.plane("weight"))
      weights.assign(content.bytes, content.bytes + layout_.blocks()[b.block.value].bytes);
    else
      for_each_joined(pieces, weights.data(), content.bytes, fn);
    count(b);
  });
}

std::vector<std::string> CommittedState::verify() {
  Requests blocks;
  total_bytes_ = done_bytes_ = 0;
  for (std::uint32_t rank = 0; rank < layout_.shards().count; ++rank)
    for (std::size_t b = 0; b < layout_.blocks().size(); ++b) {
      if (!layout_.blocks()[b].durable) continue;
      blocks.push_back({{rank, BlockId(b)}});
      total_bytes_ += layout_.blocks()[b].bytes;
    }
  std::vector<std::string> damage;
  GroupReader(view_, layout_).read(blocks, [&](const RankBlock& b, const BlockReader::Content& content) {
    try {
      if (content.error) std::rethrow_exception(content.error);
    } catch (const Error& e) {
      damage.push_back(e.what());
    }
    count(b);
  });
  return damage;
}

}  // namespace transload
