#include "train/layer.h"

#include <cmath>

namespace transload {

LayerShape layer_shape(const ModelConfig& config, std::int64_t batch, std::int64_t length) {
  LayerShape s;
  s.tokens = batch * length;
  s.hidden = config.hidden;
  s.intermediate = config.intermediate;
  s.query_width = config.heads * config.head_dim;
  s.kv_width = config.kv_heads * config.head_dim;
  s.qkv_width = s.query_width + 2 * s.kv_width;
  s.attention = {.batch = batch,
                 .length = length,
                 .heads = config.heads,
                 .kv_heads = config.kv_heads,
                 .head_dim = config.head_dim,
                 .ld_q = s.qkv_width,
                 .ld_k = s.qkv_width,
                 .ld_v = s.qkv_width,
                 .ld_o = s.query_width,
                 .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)))};
  return s;
}

template <class T>
AttentionInner<T> AttentionInner<T>::place(Scratch& region, const LayerShape& s) {
  AttentionInner in;
  in.qkv = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.qkv_width));
  in.out = region.take<T>(static_cast<std::uint64_t>(s.tokens * s.query_width));
  in.lse = region.take<float>(static_cast<std::uint64_t>(s.tokens * s.attention.heads));
  return in;
}

template <class T>
void attention_forward(StepContext& ctx, const LayerShape& s, const AttentionInner<T>& in, std::byte* scratch) {
  ctx.stream.launch(
      [&k = ctx.kernels, shape = s.attention, in, k_at = s.query_width, v_at = s.query_width + s.kv_width, scratch] {
        k.attention_forward(shape, in.qkv, in.qkv + k_at, in.qkv + v_at, in.out, in.lse, scratch);
      });
}

template <class T>
void attention_backward(StepContext& ctx, const LayerShape& s, const AttentionInner<T>& in, const T* dout, T* dqkv,
                        std::byte* scratch) {
  ctx.stream.launch([&k = ctx.kernels, shape = s.attention, in, dout, dqkv, k_at = s.query_width,
                     v_at = s.query_width + s.kv_width, scratch] {
    k.attention_backward(shape, in.qkv, in.qkv + k_at, in.qkv + v_at, in.out, dout, in.lse, dqkv, dqkv + k_at,
                         dqkv + v_at, scratch);
  });
}

#define TRANSLOAD_LAYER(T)                                                                                \
  template struct AttentionInner<T>;                                                                      \
  template void attention_forward(StepContext&, const LayerShape&, const AttentionInner<T>&, std::byte*); \
  template void attention_backward(StepContext&, const LayerShape&, const AttentionInner<T>&, const T*, T*, std::byte*);
TRANSLOAD_LAYER(float)
TRANSLOAD_LAYER(bf16)
#undef TRANSLOAD_LAYER

}  // namespace transload
