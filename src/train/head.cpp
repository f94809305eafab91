#include "train/head.h"

#include <algorithm>

#include "kernels/cpu/layers.h"

namespace transload {
namespace {

/// Logits of a block of tokens and a panel: at most this many, whatever the batch; a rule of shapes alone.
constexpr std::int64_t kLogits = 4 << 20;  // 16 MiB

std::int64_t token_block(std::int64_t tokens, std::int64_t panel_rows) {
  const std::int64_t fit = std::max<std::int64_t>(64, kLogits / panel_rows / 64 * 64);
  return std::min(tokens, fit);
}

/// Calls fn(first, count) for blocks of `block` tokens.
template <class Fn>
void for_each_block(std::int64_t tokens, std::int64_t block, Fn&& fn) {
  for (std::int64_t t = 0; t < tokens; t += block) fn(t, std::min(block, tokens - t));
}

kernels::LossRows offset(const kernels::LossRows& rows, std::int64_t t) {
  return {rows.max + t, rows.sum + t, rows.target + t};
}

/// Where a launched closure finds the logits of a panel and a block of tokens: in a kept block, in place if it lies in
/// one run, or in a buffer.
struct LogitPlace {
  BlockView view;  ///< empty: not kept
  float* buffer = nullptr;
  std::uint64_t bytes = 0;

  bool kept() const { return !view.empty(); }
  /// To be filled, then given to put_back().
  float* in_place_or_buffer() const {
    std::byte* in_place = kept() ? view.contiguous(0, bytes) : nullptr;
    return in_place == nullptr ? buffer : reinterpret_cast<float*>(in_place);
  }
  void put_back(StepKernels& k, const float* from) const {
    if (kept() && from == buffer) k.copy_in(view, buffer, 0, bytes);
  }
  const float* get(StepKernels& k) const {
    float* at = in_place_or_buffer();
    if (at == buffer) k.copy_out(view, buffer, 0, bytes);
    return at;
  }
};

/// Pins a block of kept logits for one launch; nothing where `block` is invalid.
class KeptLogits {
 public:
  KeptLogits(StepContext& ctx, BlockId block, AccessKind kind, float* buffer, std::int64_t count)
      : place_{.view = {}, .buffer = buffer, .bytes = static_cast<std::uint64_t>(count) * sizeof(float)} {
    if (!block.valid()) return;
    pin_ = ctx.blocks.pin(block, ctx.tier, kind);
    ctx.stream.wait(pin_.ready);
    place_.view = pin_.view;
  }
  const LogitPlace& place() const { return place_; }
  void release(StepContext& ctx) {
    if (pin_.held()) ctx.blocks.unpin(std::move(pin_), ctx.stream);
  }

 private:
  LogitPlace place_;
  Pin pin_;
};

}  // namespace

template <class T>
Head<T>::Head(const ModelConfig& config, const Layout& layout, const StepKernels& kernels, std::int64_t tokens)
    : tokens_(tokens), hidden_(config.hidden) {
  const auto eps = static_cast<float>(config.norm_eps);
  const bool gpt2 = config.family == Family::gpt2;
  norm_ = gpt2 ? Norm{layout.find("transformer.ln_f.weight"), layout.find("transformer.ln_f.bias"), eps}
               : Norm{layout.find("model.norm.weight"), {}, eps};
  weight_ = layout.find(!config.tied ? "lm_head.weight"
                        : gpt2       ? "transformer.wte.weight"
                                     : "model.embed_tokens.weight");
  vocab_ = static_cast<std::int64_t>(layout.param(weight_).rows());
  panel_rows_ = kernels::panel_rows(vocab_, hidden_);
  token_block_ = token_block(tokens, panel_rows_);
  const ParamId params[] = {norm_.weight, norm_.bias, weight_};
  sizes_ = PanelSizes::of(layout, kernels, params, tokens);
}

template <class T>
typename Head<T>::Buffers Head<T>::place(Scratch& scratch, bool training) const {
  const auto tokens = static_cast<std::uint64_t>(tokens_);
  Buffers b;
  b.panel = PanelBuffers<T>::place(scratch, sizes_, training);
  b.h = scratch.take<T>(static_cast<std::uint64_t>(tokens_ * hidden_));
  b.logits = scratch.take<float>(static_cast<std::uint64_t>(token_block_ * panel_rows_));
  b.rows.max = scratch.take<float>(tokens);
  b.rows.sum = scratch.take<float>(tokens);
  b.rows.target = scratch.take<float>(tokens);
  if (training) {
    b.dlogits = scratch.take<T>(static_cast<std::uint64_t>(tokens_ * panel_rows_));
    b.sums = scratch.take<float>(static_cast<std::uint64_t>(tokens_ * hidden_));
  }
  return b;
}

template <class T>
std::uint64_t Head<T>::scratch_bytes(bool training) const {
  Scratch scratch(nullptr);
  place(scratch, training);
  return scratch.peak();
}

template <class T>
std::vector<std::uint64_t> Head<T>::logit_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (std::int64_t first = 0; first < vocab_; first += panel_rows_)
    for_each_block(tokens_, token_block_, [&](std::int64_t, std::int64_t n) {
      bytes.push_back(static_cast<std::uint64_t>(n * std::min(panel_rows_, vocab_ - first)) * sizeof(float));
    });
  return bytes;
}

template <class T>
BlockId Head<T>::logits_at(BlockId kept, std::int64_t first, std::int64_t t) const {
  if (!kept.valid()) return {};
  const std::int64_t blocks = (tokens_ + token_block_ - 1) / token_block_;
  return BlockId(kept.value + static_cast<std::uint64_t>(first / panel_rows_ * blocks + t / token_block_));
}

template <class T>
void Head<T>::forward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets, std::int64_t tokens,
                      BlockId kept) {
  const Buffers b = place(scratch, ctx.training);
  norm_forward(ctx, norm_, x, b.h, tokens, b.panel);
  ctx.stream.launch([&k = ctx.kernels, rows = b.rows, tokens] { k.loss_reset(rows, tokens); });
  for_each_panel(ctx, weight_, b.panel.weights,
                 [&](std::int64_t first, std::int64_t height, const PanelSource<T>& source) {
                   for_each_block(tokens, token_block_, [&](std::int64_t t, std::int64_t n) {
                     KeptLogits logits(ctx, logits_at(kept, first, t), AccessKind::write, b.logits, n * height);
                     ctx.stream.launch([&k = ctx.kernels, h = b.h + t * hidden_, logits = logits.place(),
                                        rows = offset(b.rows, t), targets = targets + t, n, first, height, source,
                                        again = t > 0, hidden = hidden_, memory = b.panel.scratch] {
                       float* at = logits.in_place_or_buffer();
                       const T* w = again ? source.again() : source.get(k);
                       k.nt_f32(h, hidden, w, at, height, n, height, hidden, memory);
                       k.loss_panel(at, height, n, first, height, targets, rows);
                       logits.put_back(k, at);
                     });
                     logits.release(ctx);
                   });
                 });
  ctx.stream.launch([&k = ctx.kernels, rows = b.rows, tokens] { k.add_loss(rows, tokens); });
}

/// dlogits of a panel, and its part of the gradient of h.
template <class T>
void Head<T>::gradient_panel(StepContext& ctx, const Buffers& b, const std::int32_t* targets, std::int64_t tokens,
                             float scale, std::int64_t first, std::int64_t rows, const PanelSource<T>& source,
                             BlockId kept) const {
  for_each_block(tokens, token_block_, [&](std::int64_t t, std::int64_t n) {
    KeptLogits logits(ctx, logits_at(kept, first, t), AccessKind::consume, b.logits, n * rows);
    ctx.stream.launch([&k = ctx.kernels, b, logits = logits.place(), targets = targets + t, t, n, scale, first,
                       height = rows, source, hidden = hidden_] {
      const T* w = t > 0 ? source.again() : source.get(k);
      const float* at = logits.kept() ? logits.get(k) : b.logits;
      if (!logits.kept()) k.nt_f32(b.h + t * hidden, hidden, w, b.logits, height, n, height, hidden, b.panel.scratch);
      k.loss_panel_backward(at, height, n, first, height, targets, offset(b.rows, t), scale, b.dlogits + t * height);
    });
    logits.release(ctx);
  });
  ctx.stream.launch([&k = ctx.kernels, b, tokens, first, height = rows, source, hidden = hidden_] {
    k.nn(b.dlogits, height, source.again(), b.sums, hidden, tokens, height, hidden, first > 0, b.panel.scratch);
  });
}

template <class T>
const T* Head<T>::backward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets,
                           std::int64_t tokens, float scale, BlockId kept) {
  const Buffers b = place(scratch, true);
  for (std::int64_t first = 0; first < vocab_; first += panel_rows_) {
    const std::int64_t rows = std::min(panel_rows_, vocab_ - first);
    Panel<T> panel = open_panel(ctx, weight_, first, rows, b.panel.weights);
    gradient_panel(ctx, b, targets, tokens, scale, first, rows, panel.source, kept);
    if (panel.pin.held()) ctx.blocks.unpin(std::move(panel.pin), ctx.stream);
    if (!ctx.trains(weight_)) continue;
    ctx.stream.launch([&k = ctx.kernels, b, tokens, rows, hidden = hidden_] {
      k.tn(b.dlogits, rows, b.h, hidden, b.panel.gradient, tokens, rows, hidden, b.panel.scratch);
    });
    ctx.contribute(weight_, static_cast<std::uint64_t>(first * hidden_), static_cast<std::uint64_t>(rows * hidden_),
                   b.panel.gradient);
  }
  ctx.stream.launch(
      [&k = ctx.kernels, b, tokens, hidden = hidden_] { k.round_rows(b.sums, nullptr, nullptr, b.h, tokens, hidden); });
  T* dx = reinterpret_cast<T*>(b.sums);  // the sums have been rounded
  norm_backward<T>(ctx, norm_, x, b.h, dx, false, tokens, b.panel);
  return dx;
}

template class Head<float>;
template class Head<bf16>;

}  // namespace transload
