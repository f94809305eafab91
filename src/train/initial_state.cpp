#include "train/initial_state.h"

#include <algorithm>
#include <vector>

namespace transload {

namespace {

constexpr std::uint64_t kElementsAtOnce = 64 * 1024;

/// Where one chunk's master goes: weight alone (fp32), or weight and residue.
struct MasterPins {
  Pin weight, residue;
};

void put_bf16(const MasterPins& pins, std::uint64_t first, const std::vector<float>& master, std::uint64_t n,
              std::vector<bf16>& weight, std::vector<std::int16_t>& residue) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const SplitMaster split = split_master(master[i]);
    weight[i] = split.weight;
    residue[i] = split.residue;
  }
  pins.weight.view.copy_in(weight.data(), 2 * first, 2 * (first + n));
  pins.residue.view.copy_in(residue.data(), 2 * first, 2 * (first + n));
}

class Writer {
 public:
  explicit Writer(const InitialWeights& values)
      : values_(values), master_(kElementsAtOnce), weight_(kElementsAtOnce), residue_(kElementsAtOnce) {}

  void fill(const Layout& layout, const Chunk& chunk, const MasterPins& pins) {
    pins.weight.view.zero(0, pins.weight.view.bytes());  // padding too has one content
    if (pins.residue.held()) pins.residue.view.zero(0, pins.residue.view.bytes());
    for (const Piece& piece : chunk.pieces)
      for (std::uint64_t done = 0; done < piece.count; done += kElementsAtOnce)
        put(layout, piece, done, std::min(kElementsAtOnce, piece.count - done), pins);
  }

 private:
  void put(const Layout& layout, const Piece& piece, std::uint64_t done, std::uint64_t n, const MasterPins& pins) {
    values_.fill(layout.param(piece.param), piece.param_begin + done, n, master_.data());
    const std::uint64_t first = piece.chunk_begin + done;
    const bool split = layout.weight_dtype() == Dtype::bf16;
    if (split && pins.residue.held()) {
      put_bf16(pins, first, master_, n, weight_, residue_);
    } else if (split) {  // a frozen chunk keeps the weight alone, rounded as any master is
      for (std::uint64_t i = 0; i < n; ++i) weight_[i] = split_master(master_[i]).weight;
      pins.weight.view.copy_in(weight_.data(), 2 * first, 2 * (first + n));
    } else {
      pins.weight.view.copy_in(master_.data(), 4 * first, 4 * (first + n));
    }
  }

  const InitialWeights& values_;
  std::vector<float> master_;
  std::vector<bf16> weight_;
  std::vector<std::int16_t> residue_;
};

}  // namespace

void write_initial_weights(const Layout& layout, BlockAccess& blocks, Stream& stream, const InitialWeights* values) {
  const int weight = layout.plane("weight"), residue = layout.plane("residue");
  std::unique_ptr<Writer> writer = values == nullptr ? nullptr : std::make_unique<Writer>(*values);
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const ChunkId id(c);
    MasterPins pins;
    pins.weight = blocks.pin(layout.block(id, weight), Tier::host, AccessKind::write);
    const BlockId residue_block = layout.block(id, residue);
    if (residue_block.valid()) pins.residue = blocks.pin(residue_block, Tier::host, AccessKind::write);
    if (writer) {
      pins.weight.ready.wait();
      if (pins.residue.held()) pins.residue.ready.wait();
      writer->fill(layout, layout.chunk(id), pins);
    }
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
