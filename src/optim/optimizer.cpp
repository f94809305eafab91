#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace transload {

namespace {

struct Planes {
  int weight, residue, moment1, moment2, gradient, partial;
  int made;  // what backward makes: the gradient, or this rank's part of it
};

Planes planes_of(const Layout& layout) {
  const int gradient = layout.plane("gradient");
  return {layout.plane("weight"),
          layout.plane("residue"),
          layout.plane("moment1"),
          layout.plane("moment2"),
          gradient,
          layout.plane("partial"),
          layout.shards().count > 1 ? layout.plane("local") : gradient};
}

/// Where a chunk is in the step.
struct ChunkState {
  std::uint64_t trainable = 0;       ///< elements that receive a gradient
  std::uint64_t final_elements = 0;  ///< of them final in this step
  bool gradient_started = false;     ///< the gradient block has a version of this step
  bool partial_started = false;
  bool update_pending = false;
};

struct ParamState {
  std::uint32_t contributions = 0;
  std::uint32_t round = 0;    ///< contributions complete in this step
  std::uint64_t covered = 0;  ///< elements of the contribution under way
};

}  // namespace

struct Optimizer::Impl {
  Impl(const Layout& layout_in, BlockAccess& blocks_in, Stream& compute_in, Stream& host_in, Options options_in)
      : layout(layout_in),
        blocks(blocks_in),
        compute(compute_in),
        host(host_in),
        options(options_in),
        planes(planes_of(layout_in)),
        gradients(options.gradients != nullptr ? options.gradients : make_cpu_gradient_kernels()),
        host_updates(make_cpu_update_kernels()),
        device_updates(options.updates != nullptr ? options.updates : host_updates) {
    if (layout.shards().count > 1)
      exchange = std::make_unique<ShardExchange>(layout, blocks, options.exchange,
                                                 options.sums != nullptr ? options.sums : make_cpu_gradient_kernels(),
                                                 [this](ChunkId chunk) { apply(chunk); });
  }

  void contribute_piece(const Piece& piece, std::uint64_t from, std::uint64_t count, const float* values);
  void apply(ChunkId chunk);
  void bring_down(ChunkId chunk);
  void add_squares(ChunkId chunk, const BlockView& gradient) const;
  BlockId block(ChunkId c, int plane) const { return layout.block(c, plane); }
  bool gradient_is_bf16() const { return layout.planes()[planes.gradient].dtype == Dtype::bf16; }
  Tier update_tier(ChunkId c) const {
    return options.update_tiers.empty() ? Tier::host : options.update_tiers[c.value];
  }

  const Layout& layout;
  BlockAccess& blocks;
  Stream& compute;
  Stream& host;
  Options options;
  Planes planes;
  std::shared_ptr<GradientKernels> gradients;
  std::shared_ptr<UpdateKernels> host_updates, device_updates;
  std::unique_ptr<ShardExchange> exchange;  // null for one rank
  std::vector<ChunkState> chunks;
  std::vector<ParamState> params;
  std::vector<ParamUpdate> updates;  // the pending ones, by parameter; read on the streams
  std::vector<std::uint64_t> step_counts;
  float gradient_scale = 1;
};

Optimizer::Optimizer(const Layout& layout, BlockAccess& blocks, Stream& compute, Stream& host, Options options,
                     std::vector<std::uint32_t> contributions)
    : impl_(std::make_unique<Impl>(layout, blocks, compute, host, options)) {
  TRANSLOAD_CHECK(contributions.size() == layout.params().size(), "{} contributions, {} parameters",
                  contributions.size(), layout.params().size());
  TRANSLOAD_CHECK(impl_->options.update_tiers.empty() || impl_->options.update_tiers.size() == layout.chunks().size(),
                  "{} update tiers, {} chunks", impl_->options.update_tiers.size(), layout.chunks().size());
  impl_->params.resize(contributions.size());
  impl_->updates.resize(contributions.size());
  impl_->step_counts.resize(contributions.size());
  for (std::size_t p = 0; p < contributions.size(); ++p) {
    TRANSLOAD_CHECK(!layout.params()[p].frozen || contributions[p] == 0, "frozen {} has {} contributions",
                    layout.params()[p].name, contributions[p]);
    impl_->params[p].contributions = contributions[p];
    TRANSLOAD_CHECK(contributions[p] <= 1 || !impl_->gradient_is_bf16() || impl_->planes.partial >= 0,
                    "{} sums {} contributions but the layout has no partial plane", layout.params()[p].name,
                    contributions[p]);
  }
  impl_->chunks.resize(layout.chunks().size());
  for (std::size_t c = 0; c < impl_->chunks.size(); ++c)
    for (const Piece& piece : layout.chunks()[c].pieces)
      if (contributions[piece.param.value] > 0) impl_->chunks[c].trainable += piece.count;
}

Optimizer::~Optimizer() = default;

void Optimizer::begin_pass(Pass pass) {
  if (impl_->exchange) impl_->exchange->begin_pass(static_cast<std::size_t>(pass));
}

std::vector<ChunkId> Optimizer::uses() const {
  return impl_->exchange ? impl_->exchange->uses() : std::vector<ChunkId>();
}

Pin Optimizer::use_weights(ChunkId chunk) {
  if (impl_->exchange) return impl_->exchange->use_weights(chunk, impl_->options.compute_tier);
  impl_->apply(chunk);
  return impl_->blocks.pin(impl_->block(chunk, impl_->planes.weight), impl_->options.compute_tier, AccessKind::read);
}

void Optimizer::contribute(ParamId p, std::uint64_t begin, std::uint64_t count, const float* values) {
  ParamState& param = impl_->params[p.value];
  TRANSLOAD_CHECK(param.round < param.contributions, "{}: contribution {} of {}", impl_->layout.param(p).name,
                  param.round + 1, param.contributions);
  for (const Piece& piece : impl_->layout.pieces(p)) {
    const std::uint64_t from = std::max(begin, piece.param_begin);
    const std::uint64_t to = std::min(begin + count, piece.param_begin + piece.count);
    if (from >= to) continue;
    impl_->contribute_piece(piece, from, to - from, impl_->blocks.dry() ? nullptr : values + (from - begin));
  }
  param.covered += count;
  const std::uint64_t elements = impl_->layout.param(p).elements();
  TRANSLOAD_CHECK(param.covered <= elements, "{}: {} elements of {}", impl_->layout.param(p).name, param.covered,
                  elements);
  if (param.covered == elements) {
    param.covered = 0;
    ++param.round;
  }
}

void Optimizer::Impl::contribute_piece(const Piece& piece, std::uint64_t from, std::uint64_t count,
                                       const float* values) {
  ChunkState& chunk = chunks[piece.chunk.value];
  const ParamState& param = params[piece.param.value];
  const bool first = param.round == 0;
  const bool last = param.round + 1 == param.contributions;
  const bool through_partial = gradient_is_bf16() && param.contributions > 1;
  const std::uint64_t at = piece.chunk_begin + (from - piece.param_begin);
  const std::uint64_t final_now = chunk.final_elements + (last ? count : 0);
  const bool complete = last && final_now == chunk.trainable;
  apply(piece.chunk);  // the gradient of the step before must be used before this one is written

  Pin partial;
  const bool zero_partial = through_partial && !chunk.partial_started;
  if (through_partial) {
    const AccessKind kind = zero_partial ? AccessKind::write : complete ? AccessKind::consume : AccessKind::update;
    partial = blocks.pin(block(piece.chunk, planes.partial), options.compute_tier, kind);
    chunk.partial_started = true;
    compute.wait(partial.ready);
  }
  if (through_partial && !last) {
    compute.launch([this, view = partial.view, zero_partial, first, at, count, values] {
      if (zero_partial) gradients->zero(view);
      gradients->store_or_add(view, at, count, values, !first);
    });
  } else {
    const bool zero_gradient = !chunk.gradient_started;
    Pin gradient = blocks.pin(block(piece.chunk, planes.made), options.compute_tier,
                              zero_gradient ? AccessKind::write : AccessKind::update);
    chunk.gradient_started = true;
    compute.wait(gradient.ready);
    compute.launch([this, id = piece.chunk, view = gradient.view, sums = partial.view, through_partial, zero_gradient,
                    first, complete, at, count, values] {
      if (zero_gradient) gradients->zero(view);
      if (through_partial) {
        gradients->round_sum(sums, view, at, count, values);
      } else if (gradient_is_bf16()) {
        gradients->round_values(view, at, count, values);
      } else {
        gradients->store_or_add(view, at, count, values, !first);
      }
      if (complete && !exchange) add_squares(id, view);
    });
    blocks.unpin(std::move(gradient), compute);
  }
  if (partial.held()) blocks.unpin(std::move(partial), compute);
  chunk.final_elements = final_now;
  if (complete && exchange)
    exchange->sum_gradient(piece.chunk, [this](ParamId p) { return params[p.value].contributions > 0; });
}

void Optimizer::Impl::add_squares(ChunkId id, const BlockView& gradient) const {
  const Dtype dtype = gradient_is_bf16() ? Dtype::bf16 : Dtype::f32;
  for (const Piece& piece : layout.chunk(id).pieces)
    if (params[piece.param.value].contributions > 0)
      gradients->add_squares(gradient, dtype, piece.chunk_begin, piece.count);
}

Verdict Optimizer::finish_backward() {
  impl_->compute.waits_for(WaitCause::verdict);
  impl_->compute.synchronize();
  Verdict verdict;
  for (std::size_t c = 0; c < impl_->chunks.size(); ++c) {
    ChunkState& chunk = impl_->chunks[c];
    TRANSLOAD_CHECK(chunk.final_elements == chunk.trainable, "chunk {}: {} final gradients of {}", c,
                    chunk.final_elements, chunk.trainable);
    chunk.final_elements = 0;
    chunk.partial_started = false;
  }
  for (ParamState& param : impl_->params) param.round = 0;
  const kernels::ExactSum total = impl_->exchange ? impl_->exchange->finish() : impl_->gradients->take_squares();
  verdict.finite = !total.poisoned();
  verdict.norm = verdict.finite ? std::sqrt(total.value()) : std::nan("");
  const double clip = impl_->options.clip_norm;
  if (clip > 0 && verdict.finite && verdict.norm > clip)
    verdict.gradient_scale = static_cast<float>(clip / (verdict.norm + 1e-6));
  return verdict;
}

void Optimizer::step(const Verdict& verdict, const std::vector<ParamHyper>& hyper) {
  TRANSLOAD_CHECK(hyper.size() == impl_->params.size(), "{} hyperparameters, {} parameters", hyper.size(),
                  impl_->params.size());
  for (ChunkState& chunk : impl_->chunks)
    TRANSLOAD_CHECK(!chunk.update_pending, "a step began while an update was pending");
  // The updates of the last step, which read what is written here, have ended: backward wrote each one's gradient anew.
  impl_->gradient_scale = verdict.gradient_scale;
  for (std::size_t p = 0; p < hyper.size(); ++p) {
    ParamUpdate& update = impl_->updates[p];
    update.present = verdict.finite && hyper[p].present && impl_->params[p].contributions > 0;
    if (update.present) update.coefficients = kernels::coefficients(hyper[p].adamw, ++impl_->step_counts[p]);
  }
  for (std::size_t c = 0; c < impl_->chunks.size(); ++c) {
    ChunkState& chunk = impl_->chunks[c];
    const auto& pieces = impl_->layout.chunks()[c].pieces;
    chunk.update_pending = chunk.gradient_started && std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
                             return impl_->updates[piece.param.value].present;
                           });
    chunk.gradient_started = false;
  }
}

void Optimizer::flush() {
  for (std::size_t c = 0; c < impl_->chunks.size(); ++c) impl_->apply(ChunkId(c));
}

/// One chunk behind the updates, which go on meanwhile.
void Optimizer::flush_to_host() {
  ChunkId updated;
  for (std::size_t c = 0; c < impl_->chunks.size(); ++c) {
    const bool pending = impl_->chunks[c].update_pending;
    impl_->apply(ChunkId(c));
    if (updated.valid()) impl_->bring_down(updated);
    updated = pending ? ChunkId(c) : ChunkId();
  }
  if (updated.valid()) impl_->bring_down(updated);
}

void Optimizer::Impl::bring_down(ChunkId id) {
  if (update_tier(id) == Tier::host) return;
  for (const int plane : {planes.weight, planes.residue, planes.moment1, planes.moment2}) {
    if (plane < 0) continue;
    Pin pin = blocks.pin(block(id, plane), Tier::host, AccessKind::read);
    host.wait(pin.ready);  // nobody reads it here; it keeps its room until it has come
    blocks.unpin(std::move(pin), host);
  }
}

void Optimizer::Impl::apply(ChunkId id) {
  ChunkState& chunk = chunks[id.value];
  if (!chunk.update_pending) return;
  chunk.update_pending = false;
  const Tier tier = update_tier(id);
  Stream& stream = tier == Tier::device ? compute : host;
  ChunkUpdate update{.pieces = layout.shard_pieces(id),
                     .elements = layout.shard_elements(id),
                     .params = &updates,
                     .weight_dtype = layout.weight_dtype(),
                     .gradient_dtype = gradient_is_bf16() ? Dtype::bf16 : Dtype::f32,
                     .gradient_scale = gradient_scale};
  const int order[5] = {planes.weight, planes.residue, planes.moment1, planes.moment2, planes.gradient};
  BlockView* const views[5] = {&update.weight, &update.residue, &update.moment1, &update.moment2, &update.gradient};
  Pin pins[5];
  for (int i = 0; i < 5; ++i) {
    if (order[i] < 0) continue;
    pins[i] = blocks.pin(block(id, order[i]), tier, i == 4 ? AccessKind::consume : AccessKind::update);
    *views[i] = pins[i].view;
    stream.wait(pins[i].ready);
  }
  UpdateKernels& arithmetic = tier == Tier::device ? *device_updates : *host_updates;
  stream.name("update", id.value);
  stream.launch([&arithmetic, update] { arithmetic.update(update); });
  for (Pin& pin : pins)
    if (pin.held()) blocks.unpin(std::move(pin), stream);
}

const std::vector<std::uint64_t>& Optimizer::step_counts() const { return impl_->step_counts; }

void Optimizer::set_step_counts(std::vector<std::uint64_t> counts) {
  TRANSLOAD_CHECK(counts.size() == impl_->params.size(), "{} counts, {} parameters", counts.size(),
                  impl_->params.size());
  impl_->step_counts = std::move(counts);
}

}  // namespace transload
