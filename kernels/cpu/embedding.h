// Embedding rows and cross-entropy over panels of the vocabulary. The table is never needed whole: callers pass the run
// of its elements that one block holds.
#pragma once

#include <cstdint>

#include "base/block_view.h"
#include "base/dtype.h"

namespace transload::kernels {

/// x[t, :] (+)= table[ids[t], :] for the part of the table that lies in `view`: elements [param_begin, param_begin +
/// count) of the table [vocab, width], starting at byte `view_begin` of the view. Elements outside are not touched.
/// T: dtype of table and x. add: x += (GPT-2's positions; ids = t mod length then), rounded.
template <class T>
void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,
                      std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add, T* x);

/// out[e − begin] (fp32) = Σ over tokens t ascending with ids[t]·width ≤ e < (ids[t]+1)·width of dx[t, e mod width],
/// for e in [begin, end) of the table; zero where no token.
template <class T>
void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,
                       std::uint64_t begin, std::uint64_t end, float* out);

/// Running log-sum-exp over vocabulary panels, ascending. max/sum/target: [tokens]; reset before the first panel.
struct LossRows {
  float* max = nullptr;
  float* sum = nullptr;     ///< of exp(logit − max)
  float* target = nullptr;  ///< logit of the target
};
void loss_reset(LossRows rows, std::int64_t tokens);
/// logits[tokens, width] is the panel of vocabulary ids [first, first + width). A token whose target is below 0 is not
/// counted: its loss and its gradient are 0.
void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                const std::int32_t* targets, LossRows rows);
/// Σ over tokens ascending (fp64) of log(sum) + max − target.
double loss_sum(LossRows rows, std::int64_t tokens);
/// dlogits[tokens, width] (T, contiguous) = (softmax − onehot) · scale.
template <class T>
void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                         std::int64_t width, const std::int32_t* targets, LossRows rows, float scale, T* dlogits);

}  // namespace transload::kernels
