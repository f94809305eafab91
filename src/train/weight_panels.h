// Weights as computation sees them: panels of rows of a parameter, and whole vectors in fp32. A panel that lies in one
// run of one block is used in place; otherwise its elements are copied to workspace, so that bits never depend on
// chunks or frames. At most one chunk is pinned at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/cpu/products.h"
#include "train/scratch.h"
#include "train/step_context.h"

namespace transload {

/// Where launched closures find a panel's elements; captured by value, on the stream: get() first, once, then again().
template <class T>
struct PanelSource {
  BlockView view;
  std::uint64_t begin = 0, end = 0;  ///< bytes of `view`; equal: the elements are in `buffer` already
  T* buffer = nullptr;

  const T* get(StepKernels& kernels) const {
    if (begin == end) return buffer;
    if (const std::byte* in_place = view.contiguous(begin, end)) return reinterpret_cast<const T*>(in_place);
    kernels.copy_out(view, buffer, begin, end);
    return buffer;
  }
  /// Where get() has put them.
  const T* again() const {
    const std::byte* in_place = begin == end ? nullptr : view.contiguous(begin, end);
    return in_place == nullptr ? buffer : reinterpret_cast<const T*>(in_place);
  }
};

/// A panel ready for one launch. `pin` is held where the panel may be used in place.
template <class T>
struct Panel {
  std::int64_t first_row = 0, rows = 0;
  PanelSource<T> source;
  Pin pin;
};

/// Pins or copies rows [first_row, first_row + rows) of a parameter; `buffer` holds a panel.
template <class T>
Panel<T> open_panel(StepContext& ctx, ParamId p, std::int64_t first_row, std::int64_t rows, T* buffer);

/// Calls fn(first_row, rows, source) for each panel in ascending order; what fn launches may use the source.
template <class T, class Fn>
void for_each_panel(StepContext& ctx, ParamId p, T* buffer, Fn&& fn) {
  const auto rows = static_cast<std::int64_t>(ctx.layout.param(p).rows());
  const std::int64_t height = kernels::panel_rows(rows, static_cast<std::int64_t>(ctx.layout.param(p).columns()));
  for (std::int64_t first = 0; first < rows; first += height) {
    Panel<T> panel = open_panel(ctx, p, first, std::min(height, rows - first), buffer);
    fn(panel.first_row, panel.rows, panel.source);
    if (panel.pin.held()) ctx.blocks.unpin(std::move(panel.pin), ctx.stream);
  }
}

/// to[all elements] = the parameter in fp32.
template <class T>
void load_vector(StepContext& ctx, ParamId p, float* to);

/// Room for the panels and vectors of a set of parameters, and for the kernels that use them.
struct PanelSizes {
  std::uint64_t elements = 0;  ///< of the largest panel
  std::uint64_t vector = 0;    ///< elements of the longest vector
  std::uint64_t scratch_bytes = 0;

  static PanelSizes of(const Layout& layout, const StepKernels& kernels, std::span<const ParamId> params,
                       std::int64_t tokens);
};

/// In-order streams let one set of buffers serve all launches, one after the other.
template <class T>
struct PanelBuffers {
  T* weights = nullptr;
  float* gradient = nullptr;
  float* vectors[2] = {nullptr, nullptr};
  float* vector_gradients[2] = {nullptr, nullptr};
  std::byte* scratch = nullptr;

  static PanelBuffers place(Scratch& scratch, const PanelSizes& sizes, bool with_gradients) {
    PanelBuffers b;
    b.weights = scratch.take<T>(sizes.elements);
    for (float*& v : b.vectors) v = scratch.take<float>(sizes.vector);
    if (with_gradients) {
      b.gradient = scratch.take<float>(sizes.elements);
      for (float*& v : b.vector_gradients) v = scratch.take<float>(sizes.vector);
    }
    b.scratch = scratch.take<std::byte>(sizes.scratch_bytes);
    return b;
  }
};

}  // namespace transload
