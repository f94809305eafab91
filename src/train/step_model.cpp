#include "train/step_model.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "train/embedding.h"
#include "train/head.h"
#include "train/kept_blocks.h"
#include "train/layer.h"

namespace transload {
namespace {

/// Micro-batches go through embedding and head in groups, so that their panels are swept once for all of a group: as
/// many as keep the head's fp32 sums within this size, at least one. A rule of shapes alone.
constexpr std::uint64_t kGroupBytes = 64 * MiB;

std::int64_t group_size(const ModelConfig& config, const StepShape& shape) {
  const auto elements = static_cast<std::uint64_t>(shape.batch * shape.length * config.hidden);
  const std::uint64_t fit = kGroupBytes / (elements * sizeof(float));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(fit), 1, shape.accumulate);
}

template <class T>
class Model final : public StepModel {
 public:
  Model(const ModelConfig& config, const Layout& layout, const StepShape& shape, StepKernels& kernels);

  const std::vector<BlockSpec>& kept_blocks() const override { return kept_->specs(); }
  std::vector<std::uint32_t> contributions() const override;
  std::uint64_t workspace_bytes() const override {
    return std::max({forward_bytes(), head_bytes(true), backward_bytes()});
  }
  double forward_backward(const Runtime& rt, Optimizer& optimizer, std::span<const MicroBatch> batches) override;
  double evaluate(const Runtime& rt, Optimizer& optimizer, const MicroBatch& batch) override;

 private:
  /// Workspace of the phases of a step.
  std::uint64_t forward_bytes() const;
  std::uint64_t head_bytes(bool training) const;
  std::uint64_t backward_bytes() const;
  /// What a layer's call holds beside its own scratch.
  struct LayerBuffers {
    T *x = nullptr, *y = nullptr;  // y: its output; in backward the gradient of its output, then of its input
    std::byte* inner = nullptr;
  };
  LayerBuffers place_layer(Scratch& scratch) const;
  T* place_group(Scratch& scratch) const;

  StepContext context(const Runtime& rt, Optimizer& optimizer, bool training);
  void take_tokens(StepContext& ctx, std::span<const MicroBatch> batches);
  void forward(StepContext& ctx, std::int64_t micro_batches);
  void forward_layer(StepContext& ctx, Scratch scratch, std::int64_t l, std::int64_t m);
  void head(StepContext& ctx, std::int64_t micro_batches);
  void backward(StepContext& ctx);
  void backward_layer(StepContext& ctx, Scratch scratch, std::int64_t l, std::int64_t m);
  void embedding_backward(StepContext& ctx, Scratch scratch);
  std::int64_t groups() const { return (shape_.accumulate + group_ - 1) / group_; }
  /// Calls fn(first micro-batch, count) for each group.
  template <class Fn>
  void for_each_group(std::int64_t micro_batches, Fn&& fn) const {
    for (std::int64_t m = 0; m < micro_batches; m += group_) fn(m, std::min(group_, micro_batches - m));
  }

  const Layout& layout_;
  StepShape shape_;
  std::int64_t tokens_, hidden_, group_;  // tokens_: of a micro-batch
  std::uint64_t input_bytes_;
  StepKernels& kernels_;
  std::optional<RotaryTables> rotary_;
  std::vector<std::unique_ptr<Layer<T>>> layers_;
  std::optional<Embedding<T>> embedding_;
  std::optional<Head<T>> head_;
  std::optional<KeptBlocks> kept_;
  bool constants_mirrored_ = false;             // on the stream
  std::vector<std::int32_t> inputs_, targets_;  // of all micro-batches of the call; read on the stream
};

template <class T>
Model<T>::Model(const ModelConfig& config, const Layout& layout, const StepShape& shape, StepKernels& kernels)
    : layout_(layout),
      shape_(shape),
      tokens_(shape.batch * shape.length),
      hidden_(config.hidden),
      group_(group_size(config, shape)),
      input_bytes_(static_cast<std::uint64_t>(tokens_ * hidden_) * sizeof(T)),
      kernels_(kernels),
      inputs_(static_cast<std::size_t>(tokens_ * shape.accumulate)),
      targets_(inputs_.size()) {
  const LayerShape sizes = layer_shape(config, shape.batch, shape.length);
  if (config.family != Family::gpt2) rotary_.emplace(config.rope, config.head_dim, shape.length);
  for (std::int64_t l = 0; l < config.layers; ++l)
    layers_.push_back(config.family == Family::gpt2
                          ? make_gpt2_layer<T>(config, layout, l, sizes, kernels_)
                          : make_llama_layer<T>(config, layout, l, sizes, kernels_, *rotary_));
  embedding_.emplace(config, layout, kernels_, shape.length, group_ * tokens_);
  head_.emplace(config, layout, kernels_, group_ * tokens_);
  kept_.emplace(config.layers, shape, layout.blocks().size(), input_bytes_, layers_.front()->inner_bytes(), groups(),
                head_->logit_bytes());
}

template <class T>
std::vector<std::uint32_t> Model<T>::contributions() const {
  const auto groups = static_cast<std::uint32_t>(this->groups());
  std::vector<std::uint32_t> uses(layout_.params().size(), static_cast<std::uint32_t>(shape_.accumulate));
  for (const ParamId p : {embedding_->table(), embedding_->positions(), head_->norm().weight, head_->norm().bias})
    if (p.valid()) uses[p.value] = groups;
  if (head_->weight() == embedding_->table())
    uses[head_->weight().value] = 2 * groups;
  else
    uses[head_->weight().value] = groups;
  for (std::size_t p = 0; p < uses.size(); ++p)
    if (layout_.params()[p].frozen) uses[p] = 0;
  return uses;
}

template <class T>
typename Model<T>::LayerBuffers Model<T>::place_layer(Scratch& scratch) const {
  const auto elements = static_cast<std::uint64_t>(tokens_ * hidden_);
  LayerBuffers b;
  b.x = scratch.take<T>(elements);
  b.y = scratch.take<T>(elements);
  b.inner = scratch.take<std::byte>(layers_.front()->inner_bytes());
  return b;
}

/// Hidden states of the micro-batches of a group, one after the other.
template <class T>
T* Model<T>::place_group(Scratch& scratch) const {
  return scratch.take<T>(static_cast<std::uint64_t>(group_ * tokens_ * hidden_));
}

template <class T>
std::uint64_t Model<T>::forward_bytes() const {
  Scratch scratch(nullptr);
  place_group(scratch);
  scratch.rewind(0);
  place_layer(scratch);
  scratch.take<std::byte>(layers_.front()->forward_bytes());
  return scratch.peak();
}

template <class T>
std::uint64_t Model<T>::head_bytes(bool training) const {
  Scratch scratch(nullptr);
  place_group(scratch);
  scratch.take<std::byte>(head_->scratch_bytes(training));
  return scratch.peak();
}

template <class T>
std::uint64_t Model<T>::backward_bytes() const {
  Scratch scratch(nullptr);
  place_group(scratch);
  scratch.take<std::byte>(embedding_->backward_bytes());
  scratch.rewind(0);
  place_layer(scratch);
  const std::uint64_t mark = scratch.mark();
  scratch.take<std::byte>(layers_.front()->backward_bytes());
  if (shape_.recompute == Recompute::layer) {
    scratch.rewind(mark);
    scratch.take<T>(static_cast<std::uint64_t>(tokens_ * hidden_));
    scratch.take<std::byte>(layers_.front()->forward_bytes());
  }
  return scratch.peak();
}

template <class T>
StepContext Model<T>::context(const Runtime& rt, Optimizer& optimizer, bool training) {
  return {.blocks = *rt.blocks,
          .stream = *rt.compute,
          .tier = rt.compute_tier,
          .optimizer = optimizer,
          .layout = layout_,
          .kernels = kernels_,
          .training = training};
}

/// Copies ids to memory that outlives every launch, and begins the sum of losses. No launch uses the ids of the pass
/// before: it ended with enter_phase.
template <class T>
void Model<T>::take_tokens(StepContext& ctx, std::span<const MicroBatch> batches) {
  if (ctx.blocks.dry()) return;
  const auto tokens = static_cast<std::size_t>(tokens_);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const MicroBatch& batch = batches[m];
    TRANSLOAD_CHECK(batch.inputs.size() == tokens && batch.targets.size() == tokens,
                    "micro-batch {} has {} inputs and {} targets for {} tokens", m, batch.inputs.size(),
                    batch.targets.size(), tokens);
    std::copy(batch.inputs.begin(), batch.inputs.end(), inputs_.begin() + static_cast<std::ptrdiff_t>(m * tokens));
    std::copy(batch.targets.begin(), batch.targets.end(), targets_.begin() + static_cast<std::ptrdiff_t>(m * tokens));
  }
  ctx.stream.name("tokens");
  ctx.stream.launch([&k = ctx.kernels, this] {
    k.begin_loss();
    for (const auto* ids : {&inputs_, &targets_}) k.mirror(ids->data(), ids->size() * sizeof(std::int32_t));
    if (constants_mirrored_) return;
    constants_mirrored_ = true;
    embedding_->mirror_constants(k);
    if (!rotary_) return;
    for (const auto* table : {&rotary_->cos, &rotary_->sin}) k.mirror(table->data(), table->size() * sizeof(float));
  });
}

/// The workspace of the next phase. Launches of the last one may still use theirs: they end first.
std::byte* enter_phase(StepContext& ctx, std::uint64_t bytes) {
  ctx.stream.synchronize();
  return ctx.blocks.workspace(ctx.tier, bytes);
}

template <class T>
double Model<T>::forward_backward(const Runtime& rt, Optimizer& optimizer, std::span<const MicroBatch> batches) {
  StepContext ctx = context(rt, optimizer, true);
  TRANSLOAD_CHECK(ctx.blocks.dry() || static_cast<std::int64_t>(batches.size()) == shape_.accumulate,
                  "{} micro-batches for a step of {}", batches.size(), shape_.accumulate);
  optimizer.begin_pass(Optimizer::Pass::training);
  take_tokens(ctx, batches);
  forward(ctx, shape_.accumulate);
  head(ctx, shape_.accumulate);
  backward(ctx);
  ctx.stream.waits_for(WaitCause::verdict);
  enter_phase(ctx, 0);
  return ctx.blocks.dry() ? 0 : kernels_.loss() / static_cast<double>(shape_.samples_a_step() * shape_.length);
}

template <class T>
double Model<T>::evaluate(const Runtime& rt, Optimizer& optimizer, const MicroBatch& batch) {
  StepContext ctx = context(rt, optimizer, false);
  optimizer.begin_pass(Optimizer::Pass::evaluation);
  take_tokens(ctx, {&batch, 1});
  forward(ctx, 1);
  head(ctx, 1);
  enter_phase(ctx, 0);
  return ctx.blocks.dry() ? 0 : kernels_.loss();
}

template <class T>
void Model<T>::forward(StepContext& ctx, std::int64_t micro_batches) {
  const Scratch scratch(enter_phase(ctx, forward_bytes()));
  for_each_group(micro_batches, [&](std::int64_t first, std::int64_t count) {
    Scratch s = scratch;
    T* x = place_group(s);
    ctx.stream.name("embedding forward");
    embedding_->forward(ctx, inputs_.data() + first * tokens_, count * tokens_, x);
    for (std::int64_t m = 0; m < count; ++m)
      ctx.store(kept_->input(0, first + m), x + m * tokens_ * hidden_, input_bytes_);
  });
  for (std::int64_t l = 0; l < static_cast<std::int64_t>(layers_.size()); ++l)
    for (std::int64_t m = 0; m < micro_batches; ++m) forward_layer(ctx, scratch, l, m);
}

template <class T>
void Model<T>::forward_layer(StepContext& ctx, Scratch scratch, std::int64_t l, std::int64_t m) {
  Layer<T>& layer = *layers_[static_cast<std::size_t>(l)];
  const LayerBuffers b = place_layer(scratch);
  ctx.stream.name("layer forward", l);
  ctx.load(kept_->input(l, m), ctx.training ? AccessKind::read : AccessKind::consume, b.x, input_bytes_);
  layer.forward_inner(ctx, scratch, b.x, b.inner, b.y);
  if (ctx.training && shape_.recompute == Recompute::none) ctx.store(kept_->inner(l, m), b.inner, layer.inner_bytes());
  layer.forward_output(ctx, scratch, b.inner, b.y);
  ctx.store(kept_->input(l + 1, m), b.y, input_bytes_);
}

template <class T>
void Model<T>::head(StepContext& ctx, std::int64_t micro_batches) {
  Scratch scratch(enter_phase(ctx, head_bytes(ctx.training)));
  T* x = place_group(scratch);
  const auto layers = static_cast<std::int64_t>(layers_.size());
  const auto scale = static_cast<float>(1.0 / static_cast<double>(shape_.samples_a_step() * shape_.length));
  for_each_group(micro_batches, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t m = 0; m < count; ++m)
      ctx.load(kept_->input(layers, first + m), AccessKind::consume, x + m * tokens_ * hidden_, input_bytes_);
    const std::int32_t* targets = targets_.data() + first * tokens_;
    const BlockId kept = ctx.training ? kept_->logits(first / group_) : BlockId{};
    ctx.stream.name("head forward");
    head_->forward(ctx, scratch, x, targets, count * tokens_, kept);
    if (!ctx.training) return;
    if (first == 0) ctx.blocks.begin_backward();
    ctx.stream.name("head backward");
    const T* dx = head_->backward(ctx, scratch, x, targets, count * tokens_, scale, kept);
    for (std::int64_t m = 0; m < count; ++m)
      ctx.store(kept_->flow(first + m), dx + m * tokens_ * hidden_, input_bytes_);
  });
}

template <class T>
void Model<T>::backward(StepContext& ctx) {
  const Scratch scratch(enter_phase(ctx, backward_bytes()));
  for (auto l = static_cast<std::int64_t>(layers_.size()) - 1; l >= 0; --l)
    for (std::int64_t m = 0; m < shape_.accumulate; ++m) backward_layer(ctx, scratch, l, m);
  if (embedding_->trains(layout_)) embedding_backward(ctx, scratch);
}

template <class T>
void Model<T>::backward_layer(StepContext& ctx, Scratch scratch, std::int64_t l, std::int64_t m) {
  Layer<T>& layer = *layers_[static_cast<std::size_t>(l)];
  const LayerBuffers b = place_layer(scratch);
  ctx.stream.name(shape_.recompute == Recompute::none ? "layer backward" : "layer recompute", l);
  ctx.load(kept_->input(l, m), AccessKind::consume, b.x, input_bytes_);
  if (shape_.recompute == Recompute::none) {
    ctx.load(kept_->inner(l, m), AccessKind::consume, b.inner, layer.inner_bytes());
  } else {
    Scratch s = scratch;
    T* h = s.take<T>(static_cast<std::uint64_t>(tokens_ * hidden_));
    layer.forward_inner(ctx, s, b.x, b.inner, h);
  }
  ctx.stream.name("layer backward", l);
  ctx.load(kept_->flow(m), AccessKind::consume, b.y, input_bytes_);
  layer.backward(ctx, scratch, b.x, b.inner, b.y);
  if (l > 0 || embedding_->trains(layout_)) ctx.store(kept_->flow(m), b.y, input_bytes_);
}

template <class T>
void Model<T>::embedding_backward(StepContext& ctx, Scratch scratch) {
  T* dx = place_group(scratch);
  ctx.stream.name("embedding backward");
  for_each_group(shape_.accumulate, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t m = 0; m < count; ++m)
      ctx.load(kept_->flow(first + m), AccessKind::consume, dx + m * tokens_ * hidden_, input_bytes_);
    embedding_->backward(ctx, scratch, inputs_.data() + first * tokens_, count * tokens_, dx);
  });
}

}  // namespace

template <class T>
std::unique_ptr<StepModel> make_step_model(const ModelConfig& config, const Layout& layout, const StepShape& shape,
                                           StepKernels& kernels) {
  return std::make_unique<Model<T>>(config, layout, shape, kernels);
}
template std::unique_ptr<StepModel> make_step_model<float>(const ModelConfig&, const Layout&, const StepShape&,
                                                           StepKernels&);
template std::unique_ptr<StepModel> make_step_model<bf16>(const ModelConfig&, const Layout&, const StepShape&,
                                                          StepKernels&);

}  // namespace transload
