// Final norm, output head and loss as one access: two sweeps over the head's panels in ascending order, first the
// running log-sum-exp, then logits made again → their gradient → gradients of weights and input. The full logits are
// never held.
#pragma once

#include <cstdint>

#include "kernels/cpu/embedding.h"
#include "train/model_config.h"
#include "train/norm.h"
#include "train/weight_panels.h"

namespace transload {

template <class T>
class Head {
 public:
  /// `tokens`: the most that one call takes.
  Head(const ModelConfig& config, const Layout& layout, const kernels::Products& products, std::int64_t tokens);
  ParamId weight() const { return weight_; }
  const Norm& norm() const { return norm_; }
  std::uint64_t scratch_bytes(bool training) const;

  /// *loss += the sum of the losses of `tokens` predictions, on the stream.
  void forward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets, std::int64_t tokens,
               double* loss);
  /// After forward with the same arguments: hands over gradients of scale × that sum; returns that of x, in scratch.
  const T* backward(StepContext& ctx, Scratch scratch, const T* x, const std::int32_t* targets, std::int64_t tokens,
                    float scale);

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
  void gradient_panel(StepContext& ctx, const Buffers& b, const std::int32_t* targets, std::int64_t tokens, float scale,
                      std::int64_t first, std::int64_t rows, const PanelSource<T>& source) const;

  std::int64_t tokens_, hidden_, panel_rows_, token_block_;
  Norm norm_;
  ParamId weight_;
  PanelSizes sizes_;
};

}  // namespace transload
