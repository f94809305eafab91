// TensorState's chunks on a device: their places in the arena, what goes through staging, and a look at what lies
// there.
#include <algorithm>

#include "base/size.h"
#include "optim/tensor_state.h"

namespace transload {
namespace {

constexpr std::uint64_t kAlignment = 256;

std::uint64_t tiles_of(std::uint64_t elements) { return (elements + kTile - 1) / kTile; }

std::uint64_t tiles_of(const Chunk& chunk) {
  std::uint64_t tiles = 0;
  for (const Piece& piece : chunk.pieces) tiles += tiles_of(piece.count);
  return tiles;
}

std::uint64_t plane_bytes(const Layout& layout, const Chunk& chunk, std::size_t plane) {
  return round_up(chunk.elements * size_of(layout.planes()[plane].dtype), kAlignment);
}

}  // namespace

/// Kernels of the update are there for fp32 and bf16 with fp32 moments.
void TensorState::place_chunks(Kind& kind, ElementType type, std::uint64_t device_memory) {
  const bool has_kernels = type != ElementType::fp16 && moments_ == Dtype::f32;
  bool fits = has_kernels;
  for (std::size_t c = 0; c < kind.layout.chunks().size(); ++c) {
    const Chunk& chunk = kind.layout.chunks()[c];
    slot_weight_bytes_ = std::max(slot_weight_bytes_, chunk.elements * size_of(dtype_of(type)));
    slot_bytes_ = std::max(slot_bytes_, slot_weight_bytes_ + chunk.elements * StagingSlot::kGradientRoom);
    std::uint64_t bytes = type == ElementType::bf16 ? round_up(tiles_of(chunk) * sizeof(std::uint64_t), kAlignment) : 0;
    for (std::size_t p = 0; p < kind.layout.planes().size(); ++p) bytes += plane_bytes(kind.layout, chunk, p);
    fits = fits && resident_bytes_ + bytes <= device_memory;
    if (!fits) continue;
    chunks_[kind.first_chunk + c].arena_begin = resident_bytes_;
    resident_bytes_ += bytes;
    ++kind.resident;
  }
}

std::uint64_t TensorState::resident_state_bytes() const {
  std::uint64_t bytes = 0;
  for (const Kind& kind : kinds_)
    for (std::size_t b = 0; b < kind.resident * kind.layout.planes().size(); ++b)
      bytes += kind.layout.blocks()[b].bytes;
  return bytes;
}

bool TensorState::any_staged() const {
  return std::any_of(kinds_.begin(), kinds_.end(),
                     [](const Kind& kind) { return kind.on_device && kind.resident < kind.layout.chunks().size(); });
}

void TensorState::attach(TensorDevice* device, std::byte* arena, std::byte* window) {
  device_ = device;
  arena_ = arena;
  window_ = window;
  if (resident_bytes_ == 0) return;
  device->zero(arena, resident_bytes_);
  device->settle();
}

std::byte* TensorState::arena_of(const ChunkRef& chunk, int plane) const {
  const Layout& layout = kinds_[chunk.kind].layout;
  std::byte* at = arena_ + chunk.arena_begin;
  for (std::size_t p = 0; p < static_cast<std::size_t>(plane); ++p)
    at += plane_bytes(layout, layout.chunk(chunk.id), p);
  return at;
}

std::uint64_t* TensorState::hashes_of(const ChunkRef& chunk) const {
  const auto planes = static_cast<int>(kinds_[chunk.kind].layout.planes().size());
  return reinterpret_cast<std::uint64_t*>(arena_of(chunk, planes));
}

/// Of the piece's chunk: hashes lie there piece after piece.
std::uint64_t TensorState::tiles_before(const Kind& kind, const Piece& piece) const {
  std::uint64_t tiles = 0;
  for (const Piece& p : kind.layout.chunk(piece.chunk).pieces) {
    if (p.chunk_begin == piece.chunk_begin) break;
    tiles += tiles_of(p.count);
  }
  return tiles;
}

template <class Fn>
void TensorState::for_each_part(std::size_t chunk, Fn&& fn) const {
  const Kind& kind = kinds_[chunks_[chunk].kind];
  for (const Piece& piece : kind.layout.chunk(chunks_[chunk].id).pieces) {
    const Tensor& tensor = tensors_[kind.tensors[piece.param.value]];
    if (tensor.step != nullptr) fn(tensor, piece);
  }
}

void TensorState::fetch(std::size_t chunk, const StagingSlot& slot) {
  for_each_part(chunk, [&](const Tensor& tensor, const Piece& piece) {
    const std::uint64_t weight = size_of(tensor.update.weight), gradient = size_of(tensor.update.gradient);
    device_->to_host(slot.weights + piece.chunk_begin * weight,
                     static_cast<const std::byte*>(tensor.step->weight) + piece.param_begin * weight,
                     piece.count * weight);
    device_->to_host(slot.gradients + piece.chunk_begin * StagingSlot::kGradientRoom,
                     static_cast<const std::byte*>(tensor.step->gradient) + piece.param_begin * gradient,
                     piece.count * gradient);
    moved_.down_bytes += piece.count * (weight + gradient);
    moved_.down_copies += 2;
  });
}

void TensorState::send(std::size_t chunk, const StagingSlot& slot) {
  for_each_part(chunk, [&](const Tensor& tensor, const Piece& piece) {
    const std::uint64_t weight = size_of(tensor.update.weight);
    device_->to_device(static_cast<std::byte*>(tensor.step->weight) + piece.param_begin * weight,
                       slot.weights + piece.chunk_begin * weight, piece.count * weight);
    moved_.up_bytes += piece.count * weight;
    ++moved_.up_copies;
  });
}

void TensorState::update_resident(std::size_t c) const {
  const ChunkRef& chunk = chunks_[c];
  const Kind& kind = kinds_[chunk.kind];
  for_each_part(c, [&](const Tensor& tensor, const Piece& piece) {
    DeviceUpdate update;
    update.elements = static_cast<std::int64_t>(piece.count);
    update.coefficients = tensor.update.coefficients;
    update.run.moment1 = reinterpret_cast<float*>(arena_of(chunk, kind.moment1)) + piece.chunk_begin;
    update.run.moment2 = reinterpret_cast<float*>(arena_of(chunk, kind.moment2)) + piece.chunk_begin;
    if (tensor.update.weight == Dtype::bf16) {
      update.run.weight = static_cast<bf16*>(tensor.step->weight) + piece.param_begin;
      update.run.residue = reinterpret_cast<std::int16_t*>(arena_of(chunk, kind.low)) + piece.chunk_begin;
      update.known = hashes_of(chunk) + tiles_before(kind, piece);
    } else {
      update.run.weight_f32 = static_cast<float*>(tensor.step->weight) + piece.param_begin;
    }
    if (tensor.update.gradient == Dtype::bf16)
      update.run.gradient = static_cast<const bf16*>(tensor.step->gradient) + piece.param_begin;
    else
      update.run.gradient_f32 = static_cast<const float*>(tensor.step->gradient) + piece.param_begin;
    device_->update(update);
  });
}

/// Brings a part of a plane, and for the residue its tiles' hashes, to where the host can read it.
TensorState::Shown TensorState::show(const ChunkRef& chunk, int plane, const Range& range) {
  const Kind& kind = kinds_[chunk.kind];
  const std::uint64_t size = size_of(kind.layout.planes()[static_cast<std::size_t>(plane)].dtype);
  const std::uint64_t begin = range.chunk_begin() * size, end = range.chunk_end() * size;
  device_->settle();  // a slot's weights may be on their way up from there
  device_->to_host(window_ + begin, arena_of(chunk, plane) + begin, end - begin);
  Shown shown{BlockView(window_, kind.layout.chunk(chunk.id).elements * size)};
  if (plane == kind.low) {
    shown.known = reinterpret_cast<std::uint64_t*>(window_ + slot_weight_bytes_);
    const std::uint64_t first = tiles_before(kind, *range.piece) + (range.from - range.piece->param_begin) / kTile;
    device_->to_host(shown.known, hashes_of(chunk) + first, tiles_of(range.to - range.from) * sizeof(std::uint64_t));
  }
  device_->settle();
  return shown;
}

void TensorState::put_back(const ChunkRef& chunk, int plane, const Range& range, const Shown& shown) {
  const Kind& kind = kinds_[chunk.kind];
  const std::uint64_t size = size_of(kind.layout.planes()[static_cast<std::size_t>(plane)].dtype);
  const std::uint64_t begin = range.chunk_begin() * size, end = range.chunk_end() * size;
  device_->to_device(arena_of(chunk, plane) + begin, window_ + begin, end - begin);
  if (shown.known != nullptr) {
    const std::uint64_t first = tiles_before(kind, *range.piece) + (range.from - range.piece->param_begin) / kTile;
    device_->to_device(hashes_of(chunk) + first, shown.known, tiles_of(range.to - range.from) * sizeof(std::uint64_t));
  }
  device_->settle();
}

}  // namespace transload
