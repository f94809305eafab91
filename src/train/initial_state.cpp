#include "train/initial_state.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <vector>

#include "base/size.h"

namespace transload {

namespace {

constexpr std::uint64_t kElementsAtOnce = 64 * 1024;

/// Where one shard's master goes: weight alone (fp32, or frozen), or weight and residue.
struct MasterPins {
  Pin weight, residue;
};

/// One thread's memory: some elements on their way from the source to the planes.
struct Scratch {
  std::vector<float> master = std::vector<float>(kElementsAtOnce);
  std::vector<bf16> weight = std::vector<bf16>(kElementsAtOnce);
  std::vector<std::int16_t> residue = std::vector<std::int16_t>(kElementsAtOnce);
};

/// Elements [first, first + n) of the shard from scratch.master, rounded as every master is.
void put_bf16(const MasterPins& pins, std::uint64_t first, std::uint64_t n, Scratch& scratch) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const SplitMaster split = split_master(scratch.master[i]);
    scratch.weight[i] = split.weight;
    scratch.residue[i] = split.residue;
  }
  pins.weight.view.copy_in(scratch.weight.data(), 2 * first, 2 * (first + n));
  if (pins.residue.held()) pins.residue.view.copy_in(scratch.residue.data(), 2 * first, 2 * (first + n));
}

class Writer {
 public:
  Writer(const Layout& layout, const InitialWeights& values) : layout_(layout), values_(values) {}

  void fill(ChunkId chunk, const MasterPins& pins) {
    pins.weight.view.zero(0, pins.weight.view.bytes());  // padding too has one content
    if (pins.residue.held()) pins.residue.view.zero(0, pins.residue.view.bytes());
    for (const Piece& piece : layout_.shard_pieces(chunk))
      tbb::parallel_for(std::uint64_t{0}, ceil_div(piece.count, kElementsAtOnce), [&](std::uint64_t part) {
        const std::uint64_t done = part * kElementsAtOnce;
        put(piece, done, std::min(kElementsAtOnce, piece.count - done), pins);
      });
  }

 private:
  void put(const Piece& piece, std::uint64_t done, std::uint64_t n, const MasterPins& pins) {
    Scratch& scratch = scratch_.local();
    values_.fill(layout_.param(piece.param), piece.param_begin + done, n, scratch.master.data());
    const std::uint64_t first = piece.chunk_begin + done;
    if (layout_.weight_dtype() == Dtype::bf16)
      put_bf16(pins, first, n, scratch);
    else
      pins.weight.view.copy_in(scratch.master.data(), 4 * first, 4 * (first + n));
  }

  const Layout& layout_;
  const InitialWeights& values_;
  tbb::enumerable_thread_specific<Scratch> scratch_;
};

}  // namespace

void write_initial_weights(const Layout& layout, BlockAccess& blocks, Stream& stream, const InitialWeights* values) {
  const int weight = layout.plane("weight"), residue = layout.plane("residue");
  std::unique_ptr<Writer> writer = values == nullptr ? nullptr : std::make_unique<Writer>(layout, *values);
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const ChunkId id(c);
    MasterPins pins;
    pins.weight = blocks.pin(layout.block(id, weight), Tier::host, AccessKind::write);
    const BlockId residue_block = layout.block(id, residue);
    if (residue_block.valid()) pins.residue = blocks.pin(residue_block, Tier::host, AccessKind::write);
    if (writer) writer->fill(id, pins);  // pins to write are ready at once
    if (pins.residue.held()) blocks.unpin(std::move(pins.residue), stream);
    blocks.unpin(std::move(pins.weight), stream);
  }
}

void declare_zero_moments(const Layout& layout, Engine& engine) {
  for (const char* name : {"moment1", "moment2"})
    for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
      const BlockId block = layout.block(ChunkId(c), layout.plane(name));
      if (block.valid()) engine.set_zero(block);
    }
}

}  // namespace transload
