// Llama's and Qwen2's decoder layer:
//   h = norm(x);  q, k, v = h·Wᵀ (+ b);  rotary;  x2 = x + attention·Woᵀ
//   h = norm(x2);  y = x2 + (silu(h·Wgᵀ) ∘ h·Wuᵀ)·Wdᵀ
#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "kernels/cpu/layers.h"
#include "train/affine.h"
#include "train/layer.h"
#include "train/norm.h"

namespace transload {
namespace {

/// What backward needs of a layer beside its input; the outputs of norms and of SwiGLU are cheap to make again.
template <class T>
struct Inner {
  AttentionInner<T> attention;
  T *x2 = nullptr, *gate = nullptr, *up = nullptr;

  static Inner place(Scratch& region, const LayerShape& s) {
    Inner in;
    in.attention = AttentionInner<T>::place(region, s);
    in.x2 = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.hidden));
    in.gate = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.intermediate));
    in.up = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.intermediate));
    return in;
  }
};

template <class T>
struct Buffers {
  PanelBuffers<T> panel;
  T* act = nullptr;  ///< SwiGLU's output, then its gradient
  // Backward only; those of attention share their room with act.
  float* sums = nullptr;
  T *h = nullptr, *dh = nullptr, *dout = nullptr, *dqkv = nullptr;

  static Buffers place(Scratch& scratch, const LayerShape& s, const PanelSizes& sizes, bool backward) {
    const auto elements = [&](std::int64_t width) { return static_cast<std::uint64_t>(s.tokens * width); };
    Buffers b;
    b.panel = PanelBuffers<T>::place(scratch, sizes, backward);
    if (backward) {
      b.sums = scratch.take<float>(elements(std::max({s.intermediate, s.hidden, s.query_width})));
      b.h = scratch.take<T>(elements(s.hidden));
      b.dh = scratch.take<T>(elements(s.hidden));
    }
    const std::uint64_t mark = scratch.mark();
    b.act = scratch.take<T>(elements(s.intermediate));
    if (backward) {
      scratch.rewind(mark);
      b.dout = scratch.take<T>(elements(s.query_width));
      b.dqkv = scratch.take<T>(elements(s.qkv_width));
    }
    return b;
  }
};

template <class T>
class LlamaLayer final : public PlacedLayer<T, Inner<T>, Buffers<T>> {
 public:
  LlamaLayer(const ModelConfig& config, const Layout& layout, std::int64_t index, const LayerShape& shape,
             const StepKernels& kernels, const RotaryTables& rotary);

  void forward_inner(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* h) override;
  void forward_output(StepContext& ctx, Scratch scratch, const std::byte* inner, T* y) override;
  void backward(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* dy) override;

 private:
  using Base = PlacedLayer<T, Inner<T>, Buffers<T>>;
  using Base::buffers;
  using Base::inner_at;
  using Base::shape_;

  void rotate(StepContext& ctx, T* qkv, bool inverse) const;
  void backward_mlp(StepContext& ctx, const Buffers<T>& b, const Inner<T>& in, T* dy) const;
  void backward_attention(StepContext& ctx, const Buffers<T>& b, const T* x, const Inner<T>& in, T* dy) const;
  /// Each of q, k, v with the column at which it begins in qkv.
  struct Projection {
    Affine affine;
    std::int64_t column = 0;
  };

  const RotaryTables& rotary_;
  Norm norm1_, norm2_;
  std::array<Projection, 3> qkv_;
  Affine out_, gate_, up_, down_;
};

template <class T>
LlamaLayer<T>::LlamaLayer(const ModelConfig& config, const Layout& layout, std::int64_t index, const LayerShape& shape,
                          const StepKernels& kernels, const RotaryTables& rotary)
    : Base(shape), rotary_(rotary) {
  TRANSLOAD_CHECK(config.activation == "silu", "activation {} in a layer with SwiGLU", config.activation);
  const auto find = [&](const char* name) { return layout.find(fmt::format("model.layers.{}.{}", index, name)); };
  const auto affine = [&](const std::string& name, bool bias) {
    return Affine{find((name + ".weight").c_str()), bias ? find((name + ".bias").c_str()) : ParamId{}};
  };
  const auto eps = static_cast<float>(config.norm_eps);
  norm1_ = {find("input_layernorm.weight"), {}, eps};
  norm2_ = {find("post_attention_layernorm.weight"), {}, eps};
  qkv_ = {{{affine("self_attn.q_proj", config.qkv_bias), 0},
           {affine("self_attn.k_proj", config.qkv_bias), shape_.query_width},
           {affine("self_attn.v_proj", config.qkv_bias), shape_.query_width + shape_.kv_width}}};
  out_ = affine("self_attn.o_proj", config.out_bias);
  gate_ = affine("mlp.gate_proj", config.mlp_bias);
  up_ = affine("mlp.up_proj", config.mlp_bias);
  down_ = affine("mlp.down_proj", config.mlp_bias);

  std::vector<ParamId> params = {norm1_.weight, norm2_.weight};
  for (const Affine& a : {qkv_[0].affine, qkv_[1].affine, qkv_[2].affine, out_, gate_, up_, down_}) {
    params.push_back(a.weight);
    params.push_back(a.bias);
  }
  Base::size_panels(layout, kernels, params);
}

template <class T>
void LlamaLayer<T>::rotate(StepContext& ctx, T* qkv, bool inverse) const {
  ctx.stream.launch([&k = ctx.kernels, s = shape_, qkv, inverse, cos = rotary_.cos.data(), sin = rotary_.sin.data()] {
    const auto& a = s.attention;
    k.rotary(qkv, s.qkv_width, s.tokens, a.length, a.heads, a.head_dim, cos, sin, inverse);
    k.rotary(qkv + s.query_width, s.qkv_width, s.tokens, a.length, a.kv_heads, a.head_dim, cos, sin, inverse);
  });
}

template <class T>
void LlamaLayer<T>::forward_inner(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* h) {
  const LayerShape& s = shape_;
  const Inner<T> in = inner_at(inner);
  const PanelBuffers<T> panel = buffers(scratch, false).panel;
  const Rows<const T> h_rows{h, s.hidden};

  norm_forward(ctx, norm1_, x, h, s.tokens, panel);
  for (const Projection& p : qkv_)
    linear_forward(ctx, p.affine, h_rows, {in.attention.qkv + p.column, s.qkv_width}, s.tokens, panel);
  rotate(ctx, in.attention.qkv, false);
  attention_forward(ctx, s, in.attention, panel.scratch);
  linear_forward(ctx, out_, {in.attention.out, s.query_width}, {in.x2, s.hidden}, s.tokens, panel);
  ctx.stream.launch([&k = ctx.kernels, x, x2 = in.x2, n = s.tokens * s.hidden] { k.add(x, x2, x2, n); });

  norm_forward<T>(ctx, norm2_, in.x2, h, s.tokens, panel);
  linear_forward(ctx, gate_, h_rows, {in.gate, s.intermediate}, s.tokens, panel);
  linear_forward(ctx, up_, h_rows, {in.up, s.intermediate}, s.tokens, panel);
}

template <class T>
void LlamaLayer<T>::forward_output(StepContext& ctx, Scratch scratch, const std::byte* inner, T* y) {
  const LayerShape& s = shape_;
  const Inner<T> in = inner_at(inner);
  const Buffers<T> b = buffers(scratch, false);
  ctx.stream.launch(
      [&k = ctx.kernels, in, act = b.act, n = s.tokens * s.intermediate] { k.swiglu(in.gate, in.up, act, n); });
  linear_forward(ctx, down_, {b.act, s.intermediate}, {y, s.hidden}, s.tokens, b.panel);
  ctx.stream.launch([&k = ctx.kernels, x2 = in.x2, y, n = s.tokens * s.hidden] { k.add(x2, y, y, n); });
}

template <class T>
void LlamaLayer<T>::backward(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* dy) {
  const Inner<T> in = inner_at(inner);
  const Buffers<T> b = buffers(scratch, true);
  backward_mlp(ctx, b, in, dy);
  backward_attention(ctx, b, x, in, dy);
}

/// dy: of y, then of x2. gate and up become their gradients.
template <class T>
void LlamaLayer<T>::backward_mlp(StepContext& ctx, const Buffers<T>& b, const Inner<T>& in, T* dy) const {
  const LayerShape& s = shape_;
  const std::int64_t n = s.tokens * s.intermediate;
  ctx.stream.launch([&k = ctx.kernels, in, act = b.act, n] { k.swiglu(in.gate, in.up, act, n); });
  linear_backward(ctx, down_, {b.act, s.intermediate}, {dy, s.hidden}, b.sums, false, s.tokens, b.panel);
  ctx.stream.launch([&k = ctx.kernels, in, act = b.act, sums = b.sums, tokens = s.tokens, width = s.intermediate] {
    k.round_rows(sums, nullptr, nullptr, act, tokens, width);
    k.swiglu_backward(in.gate, in.up, act, in.gate, in.up, tokens * width);
  });
  norm_forward<T>(ctx, norm2_, in.x2, b.h, s.tokens, b.panel);
  const Rows<const T> h{b.h, s.hidden};
  linear_backward(ctx, gate_, h, {in.gate, s.intermediate}, b.sums, false, s.tokens, b.panel);
  linear_backward(ctx, up_, h, {in.up, s.intermediate}, b.sums, true, s.tokens, b.panel);
  ctx.stream.launch([&k = ctx.kernels, sums = b.sums, dh = b.dh, tokens = s.tokens, width = s.hidden] {
    k.round_rows(sums, nullptr, nullptr, dh, tokens, width);
  });
  norm_backward<T>(ctx, norm2_, in.x2, b.dh, dy, true, s.tokens, b.panel);
}

/// dy: of x2, then of x.
template <class T>
void LlamaLayer<T>::backward_attention(StepContext& ctx, const Buffers<T>& b, const T* x, const Inner<T>& in,
                                       T* dy) const {
  const LayerShape& s = shape_;
  linear_backward(ctx, out_, {in.attention.out, s.query_width}, {dy, s.hidden}, b.sums, false, s.tokens, b.panel);
  ctx.stream.launch([&k = ctx.kernels, sums = b.sums, dout = b.dout, tokens = s.tokens, width = s.query_width] {
    k.round_rows(sums, nullptr, nullptr, dout, tokens, width);
  });
  attention_backward<T>(ctx, s, in.attention, b.dout, b.dqkv, b.panel.scratch);
  rotate(ctx, b.dqkv, true);
  norm_forward(ctx, norm1_, x, b.h, s.tokens, b.panel);
  for (const Projection& p : qkv_)
    linear_backward(ctx, p.affine, {b.h, s.hidden}, {b.dqkv + p.column, s.qkv_width}, b.sums, p.column > 0, s.tokens,
                    b.panel);
  ctx.stream.launch([&k = ctx.kernels, sums = b.sums, dh = b.dh, tokens = s.tokens, width = s.hidden] {
    k.round_rows(sums, nullptr, nullptr, dh, tokens, width);
  });
  norm_backward<T>(ctx, norm1_, x, b.dh, dy, true, s.tokens, b.panel);
}

}  // namespace

template <class T>
std::unique_ptr<Layer<T>> make_llama_layer(const ModelConfig& config, const Layout& layout, std::int64_t index,
                                           const LayerShape& shape, const StepKernels& kernels,
                                           const RotaryTables& rotary) {
  return std::make_unique<LlamaLayer<T>>(config, layout, index, shape, kernels, rotary);
}
template std::unique_ptr<Layer<float>> make_llama_layer(const ModelConfig&, const Layout&, std::int64_t,
                                                        const LayerShape&, const StepKernels&, const RotaryTables&);
template std::unique_ptr<Layer<bf16>> make_llama_layer(const ModelConfig&, const Layout&, std::int64_t,
                                                       const LayerShape&, const StepKernels&, const RotaryTables&);

}  // namespace transload
