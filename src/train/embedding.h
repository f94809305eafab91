// Token embedding and, for GPT-2, learned positions. Only the pieces of the table whose rows are read are pinned; a dry
// run, which knows no tokens, takes all, and so does one of several ranks, which has to use the chunks that the others
// use.
#pragma once

#include <cstdint>
#include <vector>

#include "train/model_config.h"
#include "train/weight_panels.h"

namespace transload {

template <class T>
class Embedding {
 public:
  /// `tokens`: the most that one call takes; a multiple of `length`.
  Embedding(const ModelConfig& config, const Layout& layout, const StepKernels& kernels, std::int64_t length,
            std::int64_t tokens);
  ParamId table() const { return table_; }
  ParamId positions() const { return positions_; }  ///< invalid: none
  bool trains(const Layout& layout) const;
  /// Scratch of backward; forward needs none.
  std::uint64_t backward_bytes() const;
  void mirror_constants(StepKernels& kernels) const;

  /// x[t, :] = table[ids[t], :] (+ positions[t mod length, :]). ids are read on the stream, too.
  void forward(StepContext& ctx, const std::int32_t* ids, std::int64_t tokens, T* x);
  /// Hands over the gradients of all elements, zero where no token is.
  void backward(StepContext& ctx, Scratch scratch, const std::int32_t* ids, std::int64_t tokens, const T* dx);

 private:
  void gather(StepContext& ctx, const Piece& piece, const std::int32_t* ids, std::int64_t tokens, bool add, T* x);
  void scatter(StepContext& ctx, ParamId table, float* gradient, const std::int32_t* ids, std::int64_t tokens,
               const T* dx);

  std::int64_t length_, width_;
  ParamId table_, positions_;  // positions_ invalid: rotary
  PanelSizes sizes_;
  std::vector<std::int32_t> position_ids_;  // [tokens]
  std::vector<std::int32_t> sorted_;        // ids of the call, to know which pieces are read
};

}  // namespace transload
