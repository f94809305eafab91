#include "train/embedding.h"

#include <algorithm>

#include "kernels/cpu/embedding.h"

namespace transload {
namespace {

/// Rows [first, last] of a table of this width that a piece has elements of.
std::pair<std::int64_t, std::int64_t> rows_of(const Piece& piece, std::int64_t width) {
  const auto w = static_cast<std::uint64_t>(width);
  return {static_cast<std::int64_t>(piece.param_begin / w),
          static_cast<std::int64_t>((piece.param_begin + piece.count - 1) / w)};
}

}  // namespace

template <class T>
Embedding<T>::Embedding(const ModelConfig& config, const Layout& layout, const StepKernels& kernels,
                        std::int64_t length, std::int64_t tokens)
    : length_(length), width_(config.hidden) {
  if (config.family == Family::gpt2) {
    table_ = layout.find("transformer.wte.weight");
    positions_ = layout.find("transformer.wpe.weight");
    position_ids_.resize(static_cast<std::size_t>(tokens));
    for (std::int64_t t = 0; t < tokens; ++t)
      position_ids_[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % length);
  } else {
    table_ = layout.find("model.embed_tokens.weight");
  }
  const ParamId params[] = {table_, positions_};
  sizes_ = PanelSizes::of(layout, kernels, params, tokens);
  sorted_.reserve(static_cast<std::size_t>(tokens));
}

template <class T>
bool Embedding<T>::trains(const Layout& layout) const {
  return !layout.param(table_).frozen || (positions_.valid() && !layout.param(positions_).frozen);
}

template <class T>
void Embedding<T>::mirror_constants(StepKernels& kernels) const {
  if (!position_ids_.empty()) kernels.mirror(position_ids_.data(), position_ids_.size() * sizeof(std::int32_t));
}

template <class T>
std::uint64_t Embedding<T>::backward_bytes() const {
  Scratch scratch(nullptr);
  scratch.take<float>(sizes_.elements);
  return scratch.peak();
}

template <class T>
void Embedding<T>::gather(StepContext& ctx, const Piece& piece, const std::int32_t* ids, std::int64_t tokens, bool add,
                          T* x) {
  Pin pin = ctx.optimizer.use_weights(piece.chunk);
  ctx.stream.wait(pin.ready);
  ctx.stream.launch([&k = ctx.kernels, ids, tokens, width = width_, view = pin.view,
                     piece_begin = piece.chunk_begin * sizeof(T), param_begin = piece.param_begin, count = piece.count,
                     add,
                     x] { k.embedding_gather(ids, tokens, width, view, piece_begin, param_begin, count, add, x); });
  ctx.blocks.unpin(std::move(pin), ctx.stream);
}

template <class T>
void Embedding<T>::forward(StepContext& ctx, const std::int32_t* ids, std::int64_t tokens, T* x) {
  // Ranks have different tokens, and gather the same chunks.
  const bool all = ctx.blocks.dry() || ctx.layout.shards().count > 1;
  if (!all) {
    sorted_.assign(ids, ids + tokens);
    std::sort(sorted_.begin(), sorted_.end());
  }
  for (const Piece& piece : ctx.layout.pieces(table_)) {
    const auto [first, last] = rows_of(piece, width_);
    const auto next = std::lower_bound(sorted_.begin(), sorted_.end(), first);
    const bool read = all || (next != sorted_.end() && *next <= last);
    if (read) gather(ctx, piece, ids, tokens, false, x);
  }
  if (!positions_.valid()) return;
  for (const Piece& piece : ctx.layout.pieces(positions_))
    if (rows_of(piece, width_).first < length_) gather(ctx, piece, position_ids_.data(), tokens, true, x);
}

template <class T>
void Embedding<T>::scatter(StepContext& ctx, ParamId table, float* gradient, const std::int32_t* ids,
                           std::int64_t tokens, const T* dx) {
  if (!ctx.trains(table)) return;
  const std::uint64_t elements = ctx.layout.param(table).elements();
  const auto rows = static_cast<std::int64_t>(ctx.layout.param(table).rows());
  const auto step = static_cast<std::uint64_t>(kernels::panel_rows(rows, width_) * width_);
  for (std::uint64_t begin = 0; begin < elements; begin += step) {
    const std::uint64_t end = std::min(elements, begin + step);
    ctx.stream.launch([&k = ctx.kernels, ids, tokens, width = width_, dx, begin, end, gradient] {
      k.embedding_scatter(ids, tokens, width, dx, begin, end, gradient);
    });
    ctx.contribute(table, begin, end - begin, gradient);
  }
}

template <class T>
void Embedding<T>::backward(StepContext& ctx, Scratch scratch, const std::int32_t* ids, std::int64_t tokens,
                            const T* dx) {
  auto* gradient = scratch.take<float>(sizes_.elements);
  if (positions_.valid()) scatter(ctx, positions_, gradient, position_ids_.data(), tokens, dx);
  scatter(ctx, table_, gradient, ids, tokens, dx);
}

template class Embedding<float>;
template class Embedding<bf16>;

}  // namespace transload
