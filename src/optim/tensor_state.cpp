#include "optim/tensor_state.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "kernels/cpu/content_hash.h"
#include "kernels/cpu/element_hash.h"
#include "kernels/cpu/random.h"

namespace transload {
namespace {

/// Elements one task updates.
constexpr std::uint64_t kGrain = 16 * kTile;

std::vector<PlaneSpec> planes_of(ElementType type, Dtype moments) {
  std::vector<PlaneSpec> planes = {{"moment1", moments, true, false}, {"moment2", moments, true, false}};
  if (type == ElementType::bf16) planes.push_back({"residue", Dtype::i16, true, false});
  if (type == ElementType::fp16) planes.push_back({"master", Dtype::f32, true, false});
  return planes;
}

void check_names(const std::vector<OptimizerTensor>& tensors) {
  std::unordered_set<std::string> names;
  for (const OptimizerTensor& t : tensors)
    if (!names.insert(t.name).second) throw InputError(fmt::format("Two tensors are called {}.", t.name));
}

/// The device of those that are on one. InputError where there are two.
int device_of(const std::vector<OptimizerTensor>& tensors) {
  const OptimizerTensor* first = nullptr;
  for (const OptimizerTensor& t : tensors) {
    if (t.device == kOnHost) continue;
    if (t.device < 0) throw InputError(fmt::format("{} is on device {}, which there is not.", t.name, t.device));
    if (first == nullptr) first = &t;
    if (t.device != first->device)
      throw InputError(fmt::format("{} is on CUDA device {} and {} on {}: an optimizer steps tensors of one device.",
                                   first->name, first->device, t.name, t.device));
  }
  return first == nullptr ? kOnHost : first->device;
}

}  // namespace

Dtype dtype_of(ElementType type) {
  return type == ElementType::fp32 ? Dtype::f32 : type == ElementType::bf16 ? Dtype::bf16 : Dtype::f16;
}

TensorState::TensorState(const std::vector<OptimizerTensor>& tensors, Dtype moments, std::uint64_t seed,
                         std::uint64_t chunk_elements, std::uint64_t device_memory)
    : moments_(moments), seed_(seed), device_number_(device_of(tensors)) {
  check_names(tensors);
  if (chunk_elements == 0 || chunk_elements % kTile != 0)
    throw InputError(fmt::format("chunk_elements is {}; it must be a multiple of {}.", chunk_elements, kTile));
  for (const OptimizerTensor& t : tensors) tensors_.push_back({.spec = t});
  for (const bool on_device : {false, true})
    for (const ElementType type : {ElementType::fp32, ElementType::bf16, ElementType::fp16})
      add_kind(tensors, type, on_device, chunk_elements, device_memory);
}

void TensorState::add_kind(const std::vector<OptimizerTensor>& tensors, ElementType type, bool on_device,
                           std::uint64_t chunk_elements, std::uint64_t device_memory) {
  std::vector<ParamSpec> params;
  std::vector<std::size_t> of_kind;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].type != type || (tensors[i].device != kOnHost) != on_device) continue;
    tensors_[i].kind = kinds_.size();
    tensors_[i].param = ParamId(params.size());
    if (type == ElementType::bf16) tensors_[i].hashes.resize((tensors[i].elements + kTile - 1) / kTile);
    params.push_back({.name = tensors[i].name, .shape = {tensors[i].elements}});
    of_kind.push_back(i);
  }
  if (params.empty()) return;
  // A layout's chunk size counts the bytes of its first plane, here a moment.
  Layout layout(std::move(params), planes_of(type, moments_), chunk_elements * size_of(moments_));
  Kind kind{std::move(layout), std::move(of_kind), 0, chunks_.size(), -1, -1, -1, on_device};
  kind.low = std::max(kind.layout.plane("residue"), kind.layout.plane("master"));
  kind.moment1 = kind.layout.plane("moment1");
  kind.moment2 = kind.layout.plane("moment2");
  for (std::size_t c = 0; c < kind.layout.chunks().size(); ++c) chunks_.push_back({kinds_.size(), ChunkId(c)});
  if (on_device) place_chunks(kind, type, device_memory);
  const std::size_t without = kind.resident * kind.layout.planes().size();
  kind.first_block = static_cast<std::int64_t>(blocks_.size()) - static_cast<std::int64_t>(without);
  for (std::size_t b = without; b < kind.layout.blocks().size(); ++b) {
    BlockSpec block = kind.layout.blocks()[b];
    block.name = fmt::format("{}{} {}", on_device ? "cuda " : "", name_of(dtype_of(type)), block.name);
    blocks_.push_back(std::move(block));
  }
  kinds_.push_back(std::move(kind));
}

std::uint64_t TensorState::table_bytes() const {
  std::uint64_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += sizeof(Tensor) + t.spec.name.size() + t.hashes.size() * sizeof(t.hashes[0]);
  return bytes;
}

BlockId TensorState::block(const Kind& kind, ChunkId chunk, int plane) const {
  return BlockId(static_cast<std::uint32_t>(kind.first_block + kind.layout.block(chunk, plane).value));
}

void TensorState::begin_step(const std::vector<TensorStep>& steps) {
  for (Tensor& t : tensors_) t.step = nullptr;
  for (const TensorStep& step : steps) {
    if (step.tensor >= tensors_.size())
      throw InputError(fmt::format("There is no tensor {}: {} are declared.", step.tensor, tensors_.size()));
    Tensor& t = tensors_[step.tensor];
    if (t.step != nullptr) throw InputError(fmt::format("{} is listed twice in one step.", t.spec.name));
    const auto pieces = kinds_[t.kind].layout.pieces(t.param);
    if (step.gradient_type == ElementType::fp16 && !pieces.empty() &&
        pieces.front().chunk.value < kinds_[t.kind].resident)
      throw InputError(
          fmt::format("{} has an fp16 gradient; its state in device_memory takes fp32 and bf16.", t.spec.name));
    t.step = &step;
  }
  for (const TensorStep& step : steps) {
    Tensor& t = tensors_[step.tensor];
    const kernels::AdamwHyper hyper{.lr = step.learning_rate,
                                    .beta1 = step.beta1,
                                    .beta2 = step.beta2,
                                    .epsilon = step.epsilon,
                                    .weight_decay = step.weight_decay};
    t.update.weight = dtype_of(t.spec.type);
    t.update.gradient = dtype_of(step.gradient_type);
    t.update.moments = moments_;
    t.update.coefficients = kernels::coefficients(hyper, ++t.steps);
    if (moments_ == Dtype::bf16)
      t.update.stream = kernels::random_word(kernels::random_word(seed_, t.spec.key), t.steps);
  }
}

std::vector<std::size_t> TensorState::active_chunks() const {
  std::vector<std::size_t> active;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const Kind& kind = kinds_[chunks_[c].kind];
    const auto& pieces = kind.layout.chunk(chunks_[c].id).pieces;
    if (std::any_of(pieces.begin(), pieces.end(),
                    [&](const Piece& piece) { return tensors_[kind.tensors[piece.param.value]].step != nullptr; }))
      active.push_back(c);
  }
  return active;
}

Trace TensorState::trace(const std::vector<std::size_t>& chunks) const {
  Trace trace;
  for (const std::size_t c : chunks) {
    if (resident(c)) continue;
    const Kind& kind = kinds_[chunks_[c].kind];
    const auto planes = static_cast<std::uint32_t>(kind.layout.planes().size());
    const auto first = static_cast<std::uint32_t>(trace.accesses.size());
    for (std::uint32_t p = 0; p < planes; ++p)
      trace.accesses.push_back(
          {block(kind, chunks_[c].id, static_cast<int>(p)), Tier::host, AccessKind::update, first + planes});
  }
  trace.backward_tick = static_cast<std::uint32_t>(trace.accesses.size());
  return trace;
}

void TensorState::update_chunk(std::size_t c, BlockAccess& access, Stream& stream, const StagingSlot* slot) {
  const Kind& kind = kinds_[chunks_[c].kind];
  const ChunkId id = chunks_[c].id;
  std::vector<Pin> pins;
  for (std::size_t p = 0; p < kind.layout.planes().size(); ++p) {
    pins.push_back(access.pin(block(kind, id, static_cast<int>(p)), Tier::host, AccessKind::update));
  }
  for (const Pin& pin : pins) pin.ready.wait();
  access.rethrow_if_failed();  // the tensors are the caller's: what they got could not be taken back
  Planes planes;
  planes.moment1 = pins[static_cast<std::size_t>(kind.moment1)].view;
  planes.moment2 = pins[static_cast<std::size_t>(kind.moment2)].view;
  if (kind.low >= 0) planes.low = pins[static_cast<std::size_t>(kind.low)].view;
  stream.name("update", static_cast<std::int64_t>(c));
  stream.launch([this, &kind, id, planes, slot] {
    const Chunk& chunk = kind.layout.chunk(id);
    const std::uint64_t tasks = (chunk.elements + kGrain - 1) / kGrain;
    tbb::parallel_for(std::uint64_t{0}, tasks, [&](std::uint64_t task) {
      update_tiles(kind, chunk, planes, task * kGrain, (task + 1) * kGrain, slot);
    });
  });
  for (Pin& pin : pins) access.unpin(std::move(pin), stream);
}

/// Tiles that begin in [begin, end) of the chunk. A tile is counted from the tensor's start, so that its hash does not
/// depend on the chunk.
void TensorState::update_tiles(const Kind& kind, const Chunk& chunk, Planes planes, std::uint64_t begin,
                               std::uint64_t end, const StagingSlot* slot) {
  auto piece = std::upper_bound(chunk.pieces.begin(), chunk.pieces.end(), begin,
                                [](std::uint64_t at, const Piece& p) { return at < p.chunk_begin + p.count; });
  for (; piece != chunk.pieces.end() && piece->chunk_begin < end; ++piece) {
    Tensor& tensor = tensors_[kind.tensors[piece->param.value]];
    if (tensor.step == nullptr) continue;
    const std::uint64_t weight_size = size_of(tensor.update.weight), gradient_size = size_of(tensor.update.gradient);
    auto* const weights = slot == nullptr
                              ? static_cast<std::byte*>(tensor.step->weight) + piece->param_begin * weight_size
                              : slot->weights + piece->chunk_begin * weight_size;
    const auto* const gradients =
        slot == nullptr ? static_cast<const std::byte*>(tensor.step->gradient) + piece->param_begin * gradient_size
                        : slot->gradients + piece->chunk_begin * StagingSlot::kGradientRoom;
    std::uint64_t done = begin <= piece->chunk_begin ? 0 : (begin - piece->chunk_begin + kTile - 1) / kTile * kTile;
    for (; done < piece->count && piece->chunk_begin + done < end; done += kTile) {
      const std::uint64_t first = piece->param_begin + done;
      planes.at = piece->chunk_begin + done;
      update_tile(tensor.update, planes, first, std::min(kTile, piece->count - done), weights + done * weight_size,
                  gradients + done * gradient_size, tensor.hashes.empty() ? nullptr : &tensor.hashes[first / kTile]);
    }
  }
}

std::vector<std::size_t> TensorState::updated(const std::vector<std::size_t>& begun,
                                              const std::vector<std::size_t>& done,
                                              std::vector<std::size_t>* torn) const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].step == nullptr) continue;
    const Kind& kind = kinds_[tensors_[i].kind];
    const auto pieces = kind.layout.pieces(tensors_[i].param);
    const auto in = [&](const std::vector<std::size_t>& chunks) {
      return [&](const Piece& piece) {
        return std::binary_search(chunks.begin(), chunks.end(), kind.first_chunk + piece.chunk.value);
      };
    };
    if (std::all_of(pieces.begin(), pieces.end(), in(done)))
      all.push_back(i);
    else if (std::any_of(pieces.begin(), pieces.end(), in(begun)))
      torn->push_back(i);
  }
  return all;
}

int TensorState::plane_of(const Kind& kind, StatePlane plane) const {
  return plane == StatePlane::moment1 ? kind.moment1 : plane == StatePlane::moment2 ? kind.moment2 : kind.low;
}

void TensorState::check_range(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count) const {
  if (tensor >= tensors_.size())
    throw InputError(fmt::format("There is no tensor {}: {} are declared.", tensor, tensors_.size()));
  const OptimizerTensor& spec = tensors_[tensor].spec;
  if (first > spec.elements || count > spec.elements - first)
    throw InputError(
        fmt::format("{} has {} elements; [{}, {}) is not among them.", spec.name, spec.elements, first, first + count));
  const std::uint64_t end = first + count;
  if (first % kTile != 0 || (end % kTile != 0 && end != spec.elements))
    throw InputError(fmt::format("{}: [{}, {}) cuts a run of {} elements.", spec.name, first, end, kTile));
  if (plane == StatePlane::master && spec.type == ElementType::fp32)
    throw InputError(fmt::format("{} is fp32: it is its own master.", spec.name));
}

template <class Fn>
void TensorState::for_tiles_of(Tensor& tensor, const Range& range, const Shown& shown, Fn&& fn) {
  for (std::uint64_t at = range.from; at < range.to; at += kTile) {
    KnownTile known;
    if (shown.known != nullptr)
      known = {shown.known + (at - range.from) / kTile, &kernels::element_hash};
    else if (!tensor.hashes.empty())
      known = {&tensor.hashes[at / kTile], &kernels::content_hash};
    fn(shown.view, range.piece->chunk_begin + (at - range.piece->param_begin), at, std::min(kTile, range.to - at),
       known);
  }
}

template <class Fn>
void TensorState::for_each_tile(std::size_t tensor, int plane, AccessKind how, std::uint64_t first, std::uint64_t count,
                                BlockAccess& access, Stream& stream, Fn&& fn) {
  Tensor& t = tensors_[tensor];
  const Kind& kind = kinds_[t.kind];
  const auto pieces = kind.layout.pieces(t.param);
  const auto outside = [&](const Piece& piece) {
    return piece.param_begin >= first + count || piece.param_begin + piece.count <= first;
  };
  const auto begin = std::find_if_not(pieces.begin(), pieces.end(), outside);
  const auto end = std::find_if(begin, pieces.end(), outside);
  const auto pin_of = [&](const Piece& piece) {
    return piece.chunk.value < kind.resident ? Pin() : access.pin(block(kind, piece.chunk, plane), Tier::host, how);
  };
  // One block is on its way while another is used: the least budget holds both.
  Pin ahead = begin == end ? Pin() : pin_of(*begin);
  for (auto piece = begin; piece != end; ++piece) {
    Pin pin = std::exchange(ahead, Pin());
    if (piece + 1 != end) ahead = pin_of(piece[1]);
    const Range range{&*piece, std::max(first, piece->param_begin),
                      std::min(first + count, piece->param_begin + piece->count)};
    if (!pin.held()) {
      const ChunkRef& chunk = chunks_[kind.first_chunk + piece->chunk.value];
      const Shown shown = show(chunk, plane, range);
      for_tiles_of(t, range, shown, fn);
      if (how != AccessKind::read) put_back(chunk, plane, range, shown);
      continue;
    }
    pin.ready.wait();
    access.rethrow_if_failed();
    for_tiles_of(t, range, {pin.view}, fn);
    access.unpin(std::move(pin), stream);
  }
}

void TensorState::read(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count,
                       const void* weight, float* out, BlockAccess& access, Stream& stream) {
  check_range(tensor, plane, first, count);
  const Tensor& t = tensors_[tensor];
  const Dtype type = dtype_of(t.spec.type);
  for_each_tile(
      tensor, plane_of(kinds_[t.kind], plane), AccessKind::read, first, count, access, stream,
      [&](const BlockView& view, std::uint64_t at, std::uint64_t from, std::uint64_t n, const KnownTile& known) {
        float* const to = out + (from - first);
        if (plane == StatePlane::master) {
          const auto* const source = static_cast<const std::byte*>(weight) + from * size_of(type);
          read_master(type, {.low = view, .moment1 = {}, .moment2 = {}, .at = at}, n, source, known, to);
        } else if (moments_ == Dtype::f32) {
          view.copy_out(to, at * 4, (at + n) * 4);
        } else {
          std::array<bf16, kTile> values;
          view.copy_out(values.data(), at * 2, (at + n) * 2);
          for (std::uint64_t i = 0; i < n; ++i) to[i] = to_float(values[i]);
        }
      });
}

void TensorState::write(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const float* in,
                        void* weight, BlockAccess& access, Stream& stream) {
  check_range(tensor, plane, first, count);
  Tensor& t = tensors_[tensor];
  const Dtype type = dtype_of(t.spec.type);
  for_each_tile(
      tensor, plane_of(kinds_[t.kind], plane), AccessKind::update, first, count, access, stream,
      [&](const BlockView& view, std::uint64_t at, std::uint64_t from, std::uint64_t n, const KnownTile& known) {
        const float* const values = in + (from - first);
        if (plane == StatePlane::master) {
          auto* const target = weight == nullptr ? nullptr : static_cast<std::byte*>(weight) + from * size_of(type);
          write_master(type, {.low = view, .moment1 = {}, .moment2 = {}, .at = at}, n, values, target, known);
        } else if (moments_ == Dtype::f32) {
          view.copy_in(values, at * 4, (at + n) * 4);
        } else {
          std::array<bf16, kTile> rounded;
          for (std::uint64_t i = 0; i < n; ++i) rounded[i] = round_to_bf16(values[i]);
          view.copy_in(rounded.data(), at * 2, (at + n) * 2);
        }
      });
}

void TensorState::reset(std::size_t tensor, BlockAccess& access, Stream& stream) {
  check_range(tensor, StatePlane::moment1, 0, 0);
  Tensor& t = tensors_[tensor];
  t.steps = 0;
  const Kind& kind = kinds_[t.kind];
  for (std::size_t p = 0; p < kind.layout.planes().size(); ++p) {
    const std::uint64_t size = size_of(kind.layout.planes()[p].dtype);
    for_each_tile(tensor, static_cast<int>(p), AccessKind::update, 0, t.spec.elements, access, stream,
                  [&](const BlockView& view, std::uint64_t at, std::uint64_t, std::uint64_t n, const KnownTile& known) {
                    view.zero(at * size, (at + n) * size);
                    if (known.value != nullptr) *known.value = 0;
                  });
  }
}

}  // namespace transload
