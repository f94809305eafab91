// Final norm, output head and loss as one access: two sweeps over the head's panels in ascending order, first the
// running log-sum-exp, then logits → their gradient → gradients of weights and input. The second sweep makes the logits
// again, or reads what the first one kept in transient blocks: the same fp32 numbers. In workspace they are never
// whole.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/embedding.h"
#include "train/model_config.h"
#include "train/norm.h"
#include "train/weight_panels.h"

namespace transload {

template <class T>
class Head {
 public:
  /// `tokens`: the most that one call takes.
  Head(const ModelConfig& config, const Layout& layout, const StepKernels& kernels, std::int64_t tokens);
  ParamId weight() const { return weight_; }
  const Norm& norm() const { return norm_; }
  std::uint64_t scratch_bytes(bool training) const;
  /// Bytes of the blocks that keep the logits of one call: by panel, then by block of tokens.
  std::vector<std::uint64_t> logit_bytes() const;

  /// Adds the losses of `tokens` predictions to the kernels' sum. `kept`: the first of the blocks that take the logits,
  /// or invalid.
  void forward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets, std::int64_t tokens,
               BlockId kept);
  /// After forward with the same arguments: hands over gradients of scale × that sum; returns that of x, in scratch.
  const T* backward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets, std::int64_t tokens,
                    float scale, BlockId kept);

 private:
  struct Buffers {
    PanelBuffers<T> panel;
    T* h = nullptr;           // the norm's output, in the end its gradient
    float* logits = nullptr;  // of a block of tokens and a panel
    kernels::LossRows rows;
    // Backward only.
    T* dlogits = nullptr;   // of all tokens and a panel
    float* sums = nullptr;  // the gradient of h, then of x
  };
  Buffers place(Scratch& scratch, bool training) const;
  /// The block of the logits of tokens from t on and of the panel that begins at row `first`; invalid if `kept` is.
  BlockId logits_at(BlockId kept, std::int64_t first, std::int64_t t) const;
  void gradient_panel(StepContext& ctx, const Buffers& b, const std::int32_t* targets, std::int64_t tokens, float scale,
                      std::int64_t first, std::int64_t rows, const PanelSource<T>& source, BlockId kept) const;

  std::int64_t tokens_, hidden_, vocab_, panel_rows_, token_block_;
  Norm norm_;
  ParamId weight_;
  PanelSizes sizes_;
};

}  // namespace transload
