#include "train/committed_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace transload {
namespace {

/// Hands a chunk's elements on by parameter.
void for_each_piece(const Chunk& chunk, const std::byte* data, std::uint64_t element_bytes,
                    const CommittedState::Elements& fn) {
  for (const Piece& piece : chunk.pieces)
    fn(piece.param, piece.param_begin, piece.count, data + piece.chunk_begin * element_bytes);
}

/// fp32 masters of a chunk, joined in pieces that stay in the cache.
void for_each_joined(const Chunk& chunk, const std::byte* weights, const std::byte* residues,
                     const CommittedState::Elements& fn) {
  constexpr std::uint64_t kAtOnce = 16384;
  std::vector<float> masters(kAtOnce);
  for (const Piece& piece : chunk.pieces)
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

Layout layout_of(const CheckpointMeta& meta, const std::string& where) {
  try {
    return Layout::from_json(meta.layout_json);
  } catch (const InputError& error) {
    throw DamageError(fmt::format("The manifest of {} is damaged: {}", where, error.what()));
  }
}

}  // namespace

CommittedState::CommittedState(Store& store, const std::string& where, Progress progress)
    : store_(store),
      meta_(parse_meta(store.committed().metadata, where)),
      layout_(layout_of(meta_, where)),
      progress_(std::move(progress)) {
  check_blocks(where);
}

void CommittedState::check_blocks(const std::string& where) const {
  const std::vector<StoredBlock>& stored = store_.committed().blocks;
  const auto contradicts = [&](const std::string& what) {
    throw DamageError(fmt::format("The manifest of {} contradicts its own layout: {}.", where, what));
  };
  if (stored.size() < layout_.blocks().size())
    contradicts(fmt::format("{} blocks instead of {}", stored.size(), layout_.blocks().size()));
  if (meta_.step_counts.size() != layout_.params().size())
    contradicts(fmt::format("{} step counts for {} parameters", meta_.step_counts.size(), layout_.params().size()));
  if (layout_.weight_dtype() != meta_.dtype) contradicts("another dtype of the weights");
  for (std::size_t b = 0; b < layout_.blocks().size(); ++b) {
    const BlockSpec& spec = layout_.blocks()[b];
    if (spec.durable && stored[b].bytes != spec.bytes)
      contradicts(fmt::format("{} has {} bytes instead of {}", spec.name, stored[b].bytes, spec.bytes));
  }
}

std::vector<ParamId> CommittedState::stream_order() const {
  std::vector<ParamId> order;
  for (const bool frozen : {false, true})
    for (std::size_t p = 0; p < layout_.params().size(); ++p)
      if (layout_.params()[p].frozen == frozen) order.push_back(ParamId(p));
  return order;
}

std::vector<BlockId> CommittedState::blocks_of(Array array) const {
  std::vector<BlockId> blocks;
  const int plane = layout_.plane(plane_of(array));
  const int residue = array == Array::master ? layout_.plane("residue") : -1;
  for (const bool frozen : {false, true})
    for (std::size_t c = 0; c < layout_.chunks().size(); ++c) {
      if (layout_.chunks()[c].frozen != frozen) continue;
      for (const int p : {plane, residue})
        if (const BlockId block = layout_.block(ChunkId(c), p); block.valid()) blocks.push_back(block);
    }
  return blocks;
}

void CommittedState::expect(const std::vector<Array>& arrays) {
  done_bytes_ = total_bytes_ = 0;
  for (const Array array : arrays)
    for (const BlockId block : blocks_of(array)) total_bytes_ += layout_.blocks()[block.value].bytes;
}

void CommittedState::count(BlockId block) {
  done_bytes_ += layout_.blocks()[block.value].bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

void CommittedState::stream(Array array, const Elements& fn) {
  const bool joined = array == Array::master && layout_.plane("residue") >= 0;
  std::vector<std::byte> weights;
  BlockReader(store_, layout_, meta_.step)
      .read(blocks_of(array), [&](BlockId block, const std::byte* data, const std::exception_ptr& error) {
        if (error) std::rethrow_exception(error);
        const Chunk& chunk = layout_.chunk(layout_.chunk_of(block));
        if (!joined)
          for_each_piece(chunk, data, size_of(dtype_of(array)), fn);
        else if (layout_.plane_of(block) == layout_.plane("weight"))
          weights.assign(data, data + 2 * chunk.elements);
        else
          for_each_joined(chunk, weights.data(), data, fn);
        count(block);
      });
}

std::vector<std::string> CommittedState::verify() {
  std::vector<BlockId> blocks;
  total_bytes_ = done_bytes_ = 0;
  for (std::size_t b = 0; b < layout_.blocks().size(); ++b) {
    if (!layout_.blocks()[b].durable) continue;
    blocks.push_back(BlockId(b));
    total_bytes_ += layout_.blocks()[b].bytes;
  }
  std::vector<std::string> damage;
  BlockReader(store_, layout_, meta_.step)
      .read(blocks, [&](BlockId block, const std::byte*, const std::exception_ptr& error) {
        try {
          if (error) std::rethrow_exception(error);
        } catch (const Error& e) {
          damage.push_back(e.what());
        }
        count(block);
      });
  return damage;
}

std::unique_ptr<Store> open_run(const std::string& run) {
  StoreOptions options;
  options.folder = store_folder(run);
  return Store::open_read_only(options);
}

}  // namespace transload
