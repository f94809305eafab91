#include "train/weight_panels.h"

#include "base/check.h"
#include "kernels/cpu/layers.h"

namespace transload {
namespace {

/// The first piece that reaches beyond element `begin`.
std::span<const Piece> pieces_from(std::span<const Piece> pieces, std::uint64_t begin) {
  const auto first = std::partition_point(
      pieces.begin(), pieces.end(), [begin](const Piece& piece) { return piece.param_begin + piece.count <= begin; });
  return pieces.subspan(static_cast<std::size_t>(first - pieces.begin()));
}

}  // namespace

template <class T>
Panel<T> open_panel(StepContext& ctx, ParamId p, std::int64_t first_row, std::int64_t rows, T* buffer) {
  const std::uint64_t columns = ctx.layout.param(p).columns();
  const std::uint64_t begin = static_cast<std::uint64_t>(first_row) * columns;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(rows) * columns;
  Panel<T> panel;
  panel.first_row = first_row;
  panel.rows = rows;
  panel.source.buffer = buffer;
  for (const Piece& piece : pieces_from(ctx.layout.pieces(p), begin)) {
    if (piece.param_begin >= end) break;
    const std::uint64_t from = std::max(begin, piece.param_begin);
    const std::uint64_t to = std::min(end, piece.param_begin + piece.count);
    const std::uint64_t view_begin = (piece.chunk_begin + from - piece.param_begin) * sizeof(T);
    const std::uint64_t view_end = view_begin + (to - from) * sizeof(T);
    Pin pin = ctx.optimizer.use_weights(piece.chunk);
    ctx.stream.wait(pin.ready);
    if (from == begin && to == end) {
      panel.source.view = pin.view;
      panel.source.begin = view_begin;
      panel.source.end = view_end;
      panel.pin = std::move(pin);
      break;
    }
    ctx.stream.launch([&k = ctx.kernels, view = pin.view, to_buffer = buffer + (from - begin), view_begin, view_end] {
      k.copy_out(view, to_buffer, view_begin, view_end);
    });
    ctx.blocks.unpin(std::move(pin), ctx.stream);
  }
  return panel;
}

template <class T>
void load_vector(StepContext& ctx, ParamId p, float* to) {
  for (const Piece& piece : ctx.layout.pieces(p)) {
    Pin pin = ctx.optimizer.use_weights(piece.chunk);
    ctx.stream.wait(pin.ready);
    ctx.stream.launch([&k = ctx.kernels, view = pin.view, begin = piece.chunk_begin * sizeof(T), n = piece.count,
                       at = to + piece.param_begin] { k.load(view, begin, n, static_cast<const T*>(nullptr), at); });
    ctx.blocks.unpin(std::move(pin), ctx.stream);
  }
}

PanelSizes PanelSizes::of(const Layout& layout, const StepKernels& kernels, std::span<const ParamId> params,
                          std::int64_t tokens) {
  PanelSizes sizes;
  for (const ParamId p : params) {
    if (!p.valid()) continue;
    const ParamSpec& spec = layout.param(p);
    if (spec.shape.size() < 2) {
      sizes.vector = std::max(sizes.vector, spec.elements());
      sizes.scratch_bytes =
          std::max(sizes.scratch_bytes, kernels.norm_scratch_bytes(tokens, static_cast<std::int64_t>(spec.elements())));
      continue;
    }
    const auto columns = static_cast<std::int64_t>(spec.columns());
    const std::int64_t height = kernels::panel_rows(static_cast<std::int64_t>(spec.rows()), columns);
    sizes.elements = std::max(sizes.elements, static_cast<std::uint64_t>(height * columns));
    sizes.scratch_bytes = std::max(sizes.scratch_bytes, kernels.product_scratch_bytes(tokens, height, columns));
  }
  return sizes;
}

template Panel<float> open_panel(StepContext&, ParamId, std::int64_t, std::int64_t, float*);
template Panel<bf16> open_panel(StepContext&, ParamId, std::int64_t, std::int64_t, bf16*);
template void load_vector<float>(StepContext&, ParamId, float*);
template void load_vector<bf16>(StepContext&, ParamId, float*);

}  // namespace transload
