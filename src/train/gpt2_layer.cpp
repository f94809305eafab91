// GPT-2's decoder layer; weights are Conv1D [in, out]:
//   h = norm(x);  q, k, v = h·W + b;  x2 = x + attention·Wo + bo
//   h = norm(x2);  y = x2 + gelu(h·Wf + bf)·Wp + bp
#include <fmt/format.h>

#include "base/check.h"
#include "kernels/cpu/layers.h"
#include "train/affine.h"
#include "train/layer.h"
#include "train/norm.h"

namespace transload {
namespace {

/// What backward needs of a layer beside its input; the outputs of norms and of GELU are cheap to make again.
template <class T>
struct Inner {
  AttentionInner<T> attention;
  T *x2 = nullptr, *u = nullptr;  ///< u: before GELU

  static Inner place(Scratch& region, const LayerShape& s) {
    Inner in;
    in.attention = AttentionInner<T>::place(region, s);
    in.x2 = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.hidden));
    in.u = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.intermediate));
    return in;
  }
};

template <class T>
struct Buffers {
  PanelBuffers<T> panel;
  T* act = nullptr;  ///< GELU's output, then its gradient
  // Forward only.
  float* sums = nullptr;
  // Backward only; those of attention share their room with act.
  T *h = nullptr, *dout = nullptr, *dqkv = nullptr;

  static Buffers place(Scratch& scratch, const LayerShape& s, const PanelSizes& sizes, bool backward) {
    const auto elements = [&](std::int64_t width) { return static_cast<std::uint64_t>(s.tokens * width); };
    Buffers b;
    b.panel = PanelBuffers<T>::place(scratch, sizes, backward);
    if (!backward) {
      b.sums = scratch.take<float>(elements(std::max({s.qkv_width, s.intermediate, s.hidden})));
      b.act = scratch.take<T>(elements(s.intermediate));
      return b;
    }
    b.h = scratch.take<T>(elements(s.hidden));
    const std::uint64_t mark = scratch.mark();
    b.act = scratch.take<T>(elements(s.intermediate));
    scratch.rewind(mark);
    b.dout = scratch.take<T>(elements(s.query_width));
    b.dqkv = scratch.take<T>(elements(s.qkv_width));
    return b;
  }
};

kernels::Gelu gelu_of(const std::string& activation) {
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") return kernels::Gelu::tanh;
  TRANSLOAD_CHECK(activation == "gelu", "activation {} in a layer with GELU", activation);
  return kernels::Gelu::exact;
}

template <class T>
class Gpt2Layer final : public PlacedLayer<T, Inner<T>, Buffers<T>> {
 public:
  Gpt2Layer(const ModelConfig& config, const Layout& layout, std::int64_t index, const LayerShape& shape,
            const StepKernels& kernels);

  void forward_inner(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* h) override;
  void forward_output(StepContext& ctx, Scratch scratch, const std::byte* inner, T* y) override;
  void backward(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* dy) override;

 private:
  using Base = PlacedLayer<T, Inner<T>, Buffers<T>>;
  using Base::buffers;
  using Base::inner_at;
  using Base::shape_;

  void backward_mlp(StepContext& ctx, const Buffers<T>& b, const Inner<T>& in, T* dy) const;
  void backward_attention(StepContext& ctx, const Buffers<T>& b, const T* x, const Inner<T>& in, T* dy) const;

  kernels::Gelu gelu_;
  Norm norm1_, norm2_;
  Affine qkv_, out_, fc_, proj_;
};

template <class T>
Gpt2Layer<T>::Gpt2Layer(const ModelConfig& config, const Layout& layout, std::int64_t index, const LayerShape& shape,
                        const StepKernels& kernels)
    : Base(shape), gelu_(gelu_of(config.activation)) {
  const auto find = [&](const std::string& name, const char* what) {
    return layout.find(fmt::format("transformer.h.{}.{}.{}", index, name, what));
  };
  const auto norm = [&](const std::string& name) {
    return Norm{find(name, "weight"), find(name, "bias"), static_cast<float>(config.norm_eps)};
  };
  const auto affine = [&](const std::string& name) { return Affine{find(name, "weight"), find(name, "bias")}; };
  norm1_ = norm("ln_1");
  norm2_ = norm("ln_2");
  qkv_ = affine("attn.c_attn");
  out_ = affine("attn.c_proj");
  fc_ = affine("mlp.c_fc");
  proj_ = affine("mlp.c_proj");

  std::vector<ParamId> params;
  for (const Norm& n : {norm1_, norm2_}) params.insert(params.end(), {n.weight, n.bias});
  for (const Affine& a : {qkv_, out_, fc_, proj_}) params.insert(params.end(), {a.weight, a.bias});
  Base::size_panels(layout, kernels, params);
}

template <class T>
void Gpt2Layer<T>::forward_inner(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* h) {
  const LayerShape& s = shape_;
  const Inner<T> in = inner_at(inner);
  const Buffers<T> b = buffers(scratch, false);
  norm_forward(ctx, norm1_, x, h, s.tokens, b.panel);
  conv1d_forward<T>(ctx, qkv_, {h, s.hidden}, nullptr, b.sums, in.attention.qkv, s.tokens, b.panel);
  attention_forward(ctx, s, in.attention, b.panel.scratch);
  conv1d_forward<T>(ctx, out_, {in.attention.out, s.query_width}, x, b.sums, in.x2, s.tokens, b.panel);
  norm_forward<T>(ctx, norm2_, in.x2, h, s.tokens, b.panel);
  conv1d_forward<T>(ctx, fc_, {h, s.hidden}, nullptr, b.sums, in.u, s.tokens, b.panel);
}

template <class T>
void Gpt2Layer<T>::forward_output(StepContext& ctx, Scratch scratch, const std::byte* inner, T* y) {
  const LayerShape& s = shape_;
  const Inner<T> in = inner_at(inner);
  const Buffers<T> b = buffers(scratch, false);
  ctx.stream.launch([&k = ctx.kernels, u = in.u, act = b.act, kind = gelu_, n = s.tokens * s.intermediate] {
    k.gelu(kind, u, act, n);
  });
  conv1d_forward<T>(ctx, proj_, {b.act, s.intermediate}, in.x2, b.sums, y, s.tokens, b.panel);
}

template <class T>
void Gpt2Layer<T>::backward(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* dy) {
  const Inner<T> in = inner_at(inner);
  const Buffers<T> b = buffers(scratch, true);
  backward_mlp(ctx, b, in, dy);
  backward_attention(ctx, b, x, in, dy);
}

/// dy: of y, then of x2. u becomes its gradient.
template <class T>
void Gpt2Layer<T>::backward_mlp(StepContext& ctx, const Buffers<T>& b, const Inner<T>& in, T* dy) const {
  const LayerShape& s = shape_;
  const std::int64_t n = s.tokens * s.intermediate;
  ctx.stream.launch([&k = ctx.kernels, u = in.u, act = b.act, kind = gelu_, n] { k.gelu(kind, u, act, n); });
  conv1d_backward<T>(ctx, proj_, {b.act, s.intermediate}, dy, {b.act, s.intermediate}, s.tokens, b.panel);
  ctx.stream.launch(
      [&k = ctx.kernels, u = in.u, act = b.act, kind = gelu_, n] { k.gelu_backward(kind, u, act, u, n); });
  norm_forward<T>(ctx, norm2_, in.x2, b.h, s.tokens, b.panel);
  conv1d_backward<T>(ctx, fc_, {b.h, s.hidden}, in.u, {b.h, s.hidden}, s.tokens, b.panel);
  norm_backward<T>(ctx, norm2_, in.x2, b.h, dy, true, s.tokens, b.panel);
}

/// dy: of x2, then of x.
template <class T>
void Gpt2Layer<T>::backward_attention(StepContext& ctx, const Buffers<T>& b, const T* x, const Inner<T>& in,
                                      T* dy) const {
  const LayerShape& s = shape_;
  conv1d_backward<T>(ctx, out_, {in.attention.out, s.query_width}, dy, {b.dout, s.query_width}, s.tokens, b.panel);
  attention_backward<T>(ctx, s, in.attention, b.dout, b.dqkv, b.panel.scratch);
  norm_forward(ctx, norm1_, x, b.h, s.tokens, b.panel);
  conv1d_backward<T>(ctx, qkv_, {b.h, s.hidden}, b.dqkv, {b.h, s.hidden}, s.tokens, b.panel);
  norm_backward<T>(ctx, norm1_, x, b.h, dy, true, s.tokens, b.panel);
}

}  // namespace

template <class T>
std::unique_ptr<Layer<T>> make_gpt2_layer(const ModelConfig& config, const Layout& layout, std::int64_t index,
                                          const LayerShape& shape, const StepKernels& kernels) {
  return std::make_unique<Gpt2Layer<T>>(config, layout, index, shape, kernels);
}
template std::unique_ptr<Layer<float>> make_gpt2_layer(const ModelConfig&, const Layout&, std::int64_t,
                                                       const LayerShape&, const StepKernels&);
template std::unique_ptr<Layer<bf16>> make_gpt2_layer(const ModelConfig&, const Layout&, std::int64_t,
                                                      const LayerShape&, const StepKernels&);

}  // namespace transload
