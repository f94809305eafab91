// The transient blocks of a step, numbered after the layout's: layer inputs, the gradient between layers, and with
// recompute `none` what a layer's backward needs beside its input, one of each a micro-batch, and the logits, by group
// of micro-batches.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "train/transformer.h"

namespace transload {

class KeptBlocks {
 public:
  KeptBlocks(std::int64_t layers, const StepShape& shape, std::size_t first, std::uint64_t input_bytes,
             std::uint64_t inner_bytes, std::int64_t groups, const std::vector<std::uint64_t>& logit_bytes)
      : first_(first),
        layers_(layers),
        micro_batches_(shape.accumulate),
        logits_a_group_(shape.recompute == Recompute::none ? static_cast<std::int64_t>(logit_bytes.size()) : 0) {
    const auto add = [&](std::string name, std::uint64_t bytes) {
      specs_.push_back({.name = std::move(name), .bytes = bytes, .durable = false, .plane = "kept"});
    };
    for (std::int64_t l = 0; l <= layers_; ++l)
      for (std::int64_t m = 0; m < micro_batches_; ++m)
        add(l < layers_ ? fmt::format("layer {} input {}", l, m) : fmt::format("final norm input {}", m), input_bytes);
    for (std::int64_t m = 0; m < micro_batches_; ++m) add(fmt::format("gradient flow {}", m), input_bytes);
    if (shape.recompute == Recompute::layer) return;
    for (std::int64_t l = 0; l < layers_; ++l)
      for (std::int64_t m = 0; m < micro_batches_; ++m) add(fmt::format("layer {} inner {}", l, m), inner_bytes);
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::size_t i = 0; i < logit_bytes.size(); ++i) add(fmt::format("logits {} of {}", i, g), logit_bytes[i]);
  }
  const std::vector<BlockSpec>& specs() const { return specs_; }
  /// Of layer l, or of the final norm (l == layers).
  BlockId input(std::int64_t l, std::int64_t m) const { return at(l * micro_batches_ + m); }
  /// The gradient that flows from layer to layer.
  BlockId flow(std::int64_t m) const { return at((layers_ + 1) * micro_batches_ + m); }
  /// What a layer's backward needs beside its input.
  BlockId inner(std::int64_t l, std::int64_t m) const { return at((layers_ + 2 + l) * micro_batches_ + m); }
  /// The first block of a group's logits; invalid where they are made again.
  BlockId logits(std::int64_t group) const {
    if (logits_a_group_ == 0) return {};
    return at((2 * layers_ + 2) * micro_batches_ + group * logits_a_group_);
  }

 private:
  BlockId at(std::int64_t index) const { return BlockId(first_ + static_cast<std::uint64_t>(index)); }
  std::size_t first_;
  std::int64_t layers_, micro_batches_, logits_a_group_;
  std::vector<BlockSpec> specs_;
};

}  // namespace transload
