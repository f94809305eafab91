// A model, its blocks in plain memory, and an optimizer: steps of training for tests, without engine or store.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "engine/dry_run.h"
#include "kernels/cpu/random.h"
#include "optim/optimizer.h"
#include "train/in_memory_blocks.h"
#include "train/transformer.h"
#include "train/weights.h"

namespace transload::testing {

struct RigOptions {
  Dtype dtype = Dtype::f32, gradients = Dtype::f32;
  std::uint64_t chunk_bytes = 1 << 20;
  Placement placement = Placement::contiguous;
  StepShape shape{.batch = 2, .length = 32, .accumulate = 1, .recompute = Recompute::layer};
  bool queues = false;  ///< computation and updates on threads of their own
  std::vector<std::string> freeze = {};
};

using Tensors = std::map<std::string, std::vector<float>>;

/// Deterministic tokens of a model: targets are the next inputs.
inline std::vector<MicroBatch> random_batches(const ModelConfig& config, const StepShape& shape, std::uint64_t seed) {
  std::vector<MicroBatch> batches(static_cast<std::size_t>(shape.accumulate));
  std::uint64_t counter = 0;
  for (MicroBatch& batch : batches)
    for (std::int64_t t = 0; t < shape.batch * shape.length; ++t)
      for (std::vector<std::int32_t>* ids : {&batch.inputs, &batch.targets})
        ids->push_back(static_cast<std::int32_t>(kernels::random_word(seed, counter++) %
                                                 static_cast<std::uint64_t>(config.vocab)));
  return batches;
}

class TrainingRig {
 public:
  TrainingRig(const ModelConfig& config, const InitialWeights& weights, const RigOptions& options)
      : options_(options),
        config_(config),
        layout_(model_params(config, options.freeze), training_planes(options.dtype, options.gradients, true),
                options.chunk_bytes),
        transformer_(config, layout_, options.shape),
        blocks_(all_blocks(), options.placement) {
    if (options.queues) {
      queues_[0].emplace(64);
      queues_[1].emplace(64);
    }
    optimizer_.emplace(layout_, blocks_, compute(), host(), Optimizer::Options{}, transformer_.contributions());
    for (std::size_t p = 0; p < layout_.params().size(); ++p) load(ParamId(p), weights);
    for (std::size_t b = 0; b < layout_.blocks().size(); ++b)
      if (layout_.blocks()[b].plane.starts_with("moment")) blocks_.set_zero(BlockId(b));
  }

  double forward_backward(const std::vector<MicroBatch>& batches) {
    return transformer_.forward_backward({&blocks_, &compute(), Tier::host}, *optimizer_, batches);
  }
  double evaluate(const MicroBatch& batch) {
    return transformer_.evaluate({&blocks_, &compute(), Tier::host}, *optimizer_, batch);
  }
  Verdict finish() { return optimizer_->finish_backward(); }
  void update(const Verdict& verdict, double lr = 1e-3) {
    std::vector<ParamHyper> hyper;
    for (const ParamSpec& p : layout_.params())
      hyper.push_back({.adamw = {.lr = lr,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .epsilon = 1e-8,
                                 .weight_decay = p.shape.size() >= 2 ? 0.1 : 0.0},
                       .present = true});
    optimizer_->step(verdict, hyper);
  }
  /// Applies what is pending and lets all streams end.
  void settle() {
    optimizer_->flush();
    compute().synchronize();
    host().synchronize();
  }
  double step(const std::vector<MicroBatch>& batches) {
    const double loss = forward_backward(batches);
    update(finish());
    return loss;
  }

  /// A plane of all parameters that have it, as fp32: weights are the master's rounding in bf16.
  Tensors plane(const std::string& name) const {
    Tensors out;
    const int plane = layout_.plane(name);
    for (std::size_t p = 0; p < layout_.params().size(); ++p) {
      std::vector<float>& values = out[layout_.params()[p].name];
      for (const Piece& piece : layout_.pieces(ParamId(p))) {
        const BlockId block = layout_.block(piece.chunk, plane);
        if (!block.valid()) continue;
        const std::uint64_t size = size_of(layout_.planes()[static_cast<std::size_t>(plane)].dtype);
        std::vector<std::byte> bytes(piece.count * size);
        blocks_.get(block, bytes.data(), piece.chunk_begin * size, bytes.size());
        for (std::uint64_t i = 0; i < piece.count; ++i) values.push_back(value(bytes.data() + i * size, size));
      }
    }
    return out;
  }
  /// Moves a parameter along a direction.
  void shift(const std::string& name, const std::vector<float>& direction, double by) {
    const ParamId p = layout_.find(name);
    for (const Piece& piece : layout_.pieces(p)) {
      const BlockId block = layout_.block(piece.chunk, 0);
      std::vector<float> values(piece.count);
      blocks_.get(block, values.data(), piece.chunk_begin * 4, piece.count * 4);
      for (std::uint64_t i = 0; i < piece.count; ++i)
        values[i] = static_cast<float>(values[i] + by * direction[piece.param_begin + i]);
      blocks_.set(block, values.data(), piece.chunk_begin * 4, piece.count * 4);
    }
  }

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  Transformer& transformer() { return transformer_; }
  InMemoryBlocks& blocks() { return blocks_; }
  Optimizer& optimizer() { return *optimizer_; }

 private:
  static float value(const std::byte* at, std::uint64_t size) {
    float f = 0;
    bf16 b{};
    if (size == 4)
      std::memcpy(&f, at, 4);
    else
      std::memcpy(&b, at, 2);
    return size == 4 ? f : to_float(b);
  }
  std::vector<BlockSpec> all_blocks() const {
    std::vector<BlockSpec> all = layout_.blocks();
    all.insert(all.end(), transformer_.kept_blocks().begin(), transformer_.kept_blocks().end());
    return all;
  }
  void load(ParamId p, const InitialWeights& weights) {
    for (const Piece& piece : layout_.pieces(p)) {
      std::vector<float> values(piece.count);
      weights.fill(layout_.param(p), piece.param_begin, piece.count, values.data());
      const BlockId weight = layout_.block(piece.chunk, layout_.plane("weight"));
      if (options_.dtype == Dtype::f32) {
        blocks_.set(weight, values.data(), piece.chunk_begin * 4, piece.count * 4);
        continue;
      }
      std::vector<bf16> high(piece.count);
      std::vector<std::int16_t> low(piece.count);
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        const SplitMaster split = split_master(values[i]);
        high[i] = split.weight;
        low[i] = split.residue;
      }
      blocks_.set(weight, high.data(), piece.chunk_begin * 2, piece.count * 2);
      blocks_.set(layout_.block(piece.chunk, layout_.plane("residue")), low.data(), piece.chunk_begin * 2,
                  piece.count * 2);
    }
  }
  Stream& compute() { return options_.queues ? static_cast<Stream&>(*queues_[0]) : inline_; }
  Stream& host() { return options_.queues ? static_cast<Stream&>(*queues_[1]) : inline_; }

  RigOptions options_;
  ModelConfig config_;
  Layout layout_;
  Transformer transformer_;
  InMemoryBlocks blocks_;
  InlineStream inline_;
  std::optional<QueueStream> queues_[2];
  std::optional<Optimizer> optimizer_;
};

/// The trace of a step as the steady state sees it: the second of a dry run, with updates pending.
inline Trace dry_trace(const ModelConfig& config, const RigOptions& options) {
  const Layout layout(model_params(config, options.freeze), training_planes(options.dtype, options.gradients, true),
                      options.chunk_bytes);
  Transformer transformer(config, layout, options.shape);
  DryRun dry;
  Optimizer optimizer(layout, dry, dry.stream(), dry.stream(), Optimizer::Options{}, transformer.contributions());
  const std::vector<ParamHyper> hyper(layout.params().size());
  for (int step = 0; step < 2; ++step) {
    dry.take_trace();
    transformer.forward_backward({&dry, &dry.stream(), Tier::host}, optimizer, {});
    optimizer.step(optimizer.finish_backward(), hyper);
  }
  return dry.take_trace();
}

}  // namespace transload::testing
