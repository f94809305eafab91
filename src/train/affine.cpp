#include "train/affine.h"

#include "kernels/cpu/layers.h"

namespace transload {
namespace {

template <class T>
const float* load_bias(StepContext& ctx, const Affine& a, const PanelBuffers<T>& buffers) {
  if (!a.bias.valid()) return nullptr;
  load_vector<T>(ctx, a.bias, buffers.vectors[1]);
  return buffers.vectors[1];
}

/// Hands over db = Σ dy.
template <class T>
void bias_gradient(StepContext& ctx, const Affine& a, Rows<const T> dy, std::int64_t tokens,
                   const PanelBuffers<T>& buffers) {
  if (!a.bias.valid() || !ctx.trains(a.bias)) return;
  const std::uint64_t width = ctx.layout.param(a.bias).elements();
  ctx.stream.launch([&k = ctx.kernels, dy, tokens, width, db = buffers.vector_gradients[0], scratch = buffers.scratch] {
    k.column_sum(dy.data, dy.ld, db, tokens, static_cast<std::int64_t>(width), scratch);
  });
  ctx.contribute(a.bias, 0, width, buffers.vector_gradients[0]);
}

/// Hands over dW[rows, columns] = of_rowsᵀ · of_columns, panel by panel.
template <class T>
void weight_gradient(StepContext& ctx, ParamId weight, Rows<const T> of_rows, Rows<const T> of_columns,
                     std::int64_t tokens, const PanelBuffers<T>& buffers) {
  if (!ctx.trains(weight)) return;
  const auto rows = static_cast<std::int64_t>(ctx.layout.param(weight).rows());
  const auto columns = static_cast<std::int64_t>(ctx.layout.param(weight).columns());
  const std::int64_t height = kernels::panel_rows(rows, columns);
  for (std::int64_t first = 0; first < rows; first += height) {
    const std::int64_t h = std::min(height, rows - first);
    ctx.stream.launch([&k = ctx.kernels, of_rows, of_columns, first, h, columns, tokens, g = buffers.gradient,
                       scratch = buffers.scratch] {
      k.tn(of_rows.data + first, of_rows.ld, of_columns.data, of_columns.ld, g, tokens, h, columns, scratch);
    });
    ctx.contribute(weight, static_cast<std::uint64_t>(first * columns), static_cast<std::uint64_t>(h * columns),
                   buffers.gradient);
  }
}

template <class T>
std::int64_t columns_of(const StepContext& ctx, const Affine& a) {
  return static_cast<std::int64_t>(ctx.layout.param(a.weight).columns());
}

}  // namespace

template <class T>
void linear_forward(StepContext& ctx, const Affine& a, Rows<const T> x, Rows<T> y, std::int64_t tokens,
                    const PanelBuffers<T>& buffers) {
  const std::int64_t in = columns_of<T>(ctx, a);
  const float* bias = load_bias(ctx, a, buffers);
  for_each_panel(
      ctx, a.weight, buffers.weights, [&](std::int64_t first, std::int64_t rows, const PanelSource<T>& source) {
        ctx.stream.launch([&k = ctx.kernels, x, y, bias, first, rows, in, tokens, source, scratch = buffers.scratch] {
          k.nt(x.data, x.ld, source.get(k), bias == nullptr ? nullptr : bias + first, y.data + first, y.ld, tokens,
               rows, in, scratch);
        });
      });
}

template <class T>
void linear_backward(StepContext& ctx, const Affine& a, Rows<const T> x, Rows<const T> dy, float* dx, bool accumulate,
                     std::int64_t tokens, const PanelBuffers<T>& buffers) {
  weight_gradient(ctx, a.weight, dy, x, tokens, buffers);
  bias_gradient(ctx, a, dy, tokens, buffers);
  const std::int64_t in = columns_of<T>(ctx, a);
  for_each_panel(ctx, a.weight, buffers.weights,
                 [&](std::int64_t first, std::int64_t rows, const PanelSource<T>& source) {
                   ctx.stream.launch([&k = ctx.kernels, dy, dx, add = accumulate || first > 0, first, rows, in, tokens,
                                      source, scratch = buffers.scratch] {
                     k.nn(dy.data + first, dy.ld, source.get(k), dx, in, tokens, rows, in, add, scratch);
                   });
                 });
}

template <class T>
void conv1d_forward(StepContext& ctx, const Affine& a, Rows<const T> x, const T* residual, float* sums, T* y,
                    std::int64_t tokens, const PanelBuffers<T>& buffers) {
  const std::int64_t out = columns_of<T>(ctx, a);
  for_each_panel(
      ctx, a.weight, buffers.weights, [&](std::int64_t first, std::int64_t rows, const PanelSource<T>& source) {
        ctx.stream.launch([&k = ctx.kernels, x, sums, first, rows, out, tokens, source, scratch = buffers.scratch] {
          k.nn(x.data + first, x.ld, source.get(k), sums, out, tokens, rows, out, first > 0, scratch);
        });
      });
  const float* bias = load_bias(ctx, a, buffers);
  ctx.stream.launch(
      [&k = ctx.kernels, sums, bias, residual, y, tokens, out] { k.round_rows(sums, bias, residual, y, tokens, out); });
}

template <class T>
void conv1d_backward(StepContext& ctx, const Affine& a, Rows<const T> x, const T* dy, Rows<T> dx, std::int64_t tokens,
                     const PanelBuffers<T>& buffers) {
  const std::int64_t out = columns_of<T>(ctx, a);
  const Rows<const T> dy_rows{dy, out};
  weight_gradient(ctx, a.weight, x, dy_rows, tokens, buffers);
  bias_gradient(ctx, a, dy_rows, tokens, buffers);
  for_each_panel(
      ctx, a.weight, buffers.weights, [&](std::int64_t first, std::int64_t rows, const PanelSource<T>& source) {
        ctx.stream.launch([&k = ctx.kernels, dy, dx, first, rows, out, tokens, source, scratch = buffers.scratch] {
          k.nt(dy, out, source.get(k), nullptr, dx.data + first, dx.ld, tokens, rows, out, scratch);
        });
      });
}

#define TRANSLOAD_AFFINE(T)                                                                                            \
  template void linear_forward(StepContext&, const Affine&, Rows<const T>, Rows<T>, std::int64_t,                      \
                               const PanelBuffers<T>&);                                                                \
  template void linear_backward(StepContext&, const Affine&, Rows<const T>, Rows<const T>, float*, bool, std::int64_t, \
                                const PanelBuffers<T>&);                                                               \
  template void conv1d_forward(StepContext&, const Affine&, Rows<const T>, const T*, float*, T*, std::int64_t,         \
                               const PanelBuffers<T>&);                                                                \
  template void conv1d_backward(StepContext&, const Affine&, Rows<const T>, const T*, Rows<T>, std::int64_t,           \
                                const PanelBuffers<T>&);
TRANSLOAD_AFFINE(float)
TRANSLOAD_AFFINE(bf16)
#undef TRANSLOAD_AFFINE

}  // namespace transload
