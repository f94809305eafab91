#include "kernels/cuda/attention_panels.h"

#include <algorithm>

#include "base/size.h"
#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

constexpr std::int64_t kMostQueries = 128, kLeastQueries = 16;
constexpr std::int64_t kScores = 8 << 20;  // of a panel, all heads; a rule of shapes alone
constexpr std::int64_t kScoreColumns = 64;
constexpr std::uint64_t kAlign = 256;

std::int64_t score_ld(const AttentionShape& s) {
  return (s.length + kScoreColumns - 1) / kScoreColumns * kScoreColumns;
}
std::int64_t panel_queries(const AttentionShape& s) {
  const std::int64_t fit = kScores / (s.heads * score_ld(s)) / kLeastQueries * kLeastQueries;
  return std::min(s.length, std::clamp(fit, kLeastQueries, kMostQueries));
}

/// What lies in scratch; measured with a null base.
template <class T>
struct Buffers {
  Buffers(const AttentionShape& s, std::byte* base) : next_(reinterpret_cast<std::uintptr_t>(base)) {
    const std::int64_t scores_count = s.heads * panel_queries(s) * score_ld(s);
    const std::int64_t keys = s.length * s.kv_heads * s.head_dim;
    workspace = take<std::byte>(static_cast<std::int64_t>(kMostWorkspaceBytes));
    scores = take<float>(scores_count);
    slopes = take<float>(scores_count);
    p = take<T>(scores_count);
    ds = take<T>(scores_count);
    delta = take<float>(s.batch * s.heads * s.length);
    dk = take<float>(keys);
    dv = take<float>(keys);
    bytes = next_ - reinterpret_cast<std::uintptr_t>(base);
  }
  std::byte* workspace;
  float *scores, *slopes, *delta, *dk, *dv;
  T *p, *ds;
  std::uint64_t bytes;

 private:
  template <class U>
  U* take(std::int64_t count) {
    const std::uintptr_t at = next_;
    next_ += round_up(static_cast<std::uint64_t>(count) * sizeof(U), kAlign);
    return reinterpret_cast<U*>(at);
  }
  std::uintptr_t next_;
};

/// One sequence and one panel of its query rows; calls products of all key/value heads for one query head of each.
template <class T>
class Panel {
 public:
  Panel(Products& products, const AttentionShape& s, const Buffers<T>& buffers, std::int64_t batch, std::int64_t first,
        cudaStream_t stream)
      : products_(products), s_(s), b_(buffers), stream_(stream), batch_(batch), first_(first) {
    rows_ = std::min(panel_queries(s), s.length - first);
    keys_ = first + rows_;  // what its rows can see
    group_ = s.heads / s.kv_heads;
  }
  std::int64_t group() const { return group_; }
  ScorePanel score_panel() const {
    return {.heads = s_.heads,
            .queries = rows_,
            .first_query = first_,
            .length = keys_,
            .ld = score_ld(s_),
            .lse_ld = s_.length,
            .scale = s_.scale};
  }
  std::int64_t lse_at() const { return batch_ * s_.heads * s_.length; }

  /// scores = X · Kᵀ, X of the rows' queries (or of their outputs' gradients, with values for keys).
  void scores(std::int64_t j, const T* x, std::int64_t ld_x, const T* keys, std::int64_t ld_keys, float* to) const {
    ProductShape p = shape(rows_, keys_, s_.head_dim);
    p.b_transposed = true;
    p.lda = ld_x, p.ldb = ld_keys, p.ldc = score_ld(s_);
    p.stride_a = group_ * s_.head_dim, p.stride_b = s_.head_dim, p.stride_c = score_stride();
    run(p, x + row(j, ld_x), keys + key(ld_keys), false, to + score(j));
  }
  /// to [rows, head_dim] = P · B, B [keys, head_dim].
  void weighted(std::int64_t j, const T* p_scores, const T* keys, std::int64_t ld_keys, T* to,
                std::int64_t ld_to) const {
    ProductShape p = shape(rows_, s_.head_dim, keys_);
    p.result = p.operands;
    p.lda = score_ld(s_), p.ldb = ld_keys, p.ldc = ld_to;
    p.stride_a = score_stride(), p.stride_b = s_.head_dim, p.stride_c = group_ * s_.head_dim;
    run(p, p_scores + score(j), keys + key(ld_keys), false, to + row(j, ld_to));
  }
  /// sums [keys, kv_heads · head_dim] = or += Pᵀ · X, X [rows, head_dim].
  void transposed(std::int64_t j, const T* p_scores, const T* x, std::int64_t ld_x, bool accumulate,
                  float* sums) const {
    ProductShape p = shape(keys_, s_.head_dim, rows_);
    p.a_transposed = true;
    p.lda = score_ld(s_), p.ldb = ld_x, p.ldc = s_.kv_heads * s_.head_dim;
    p.stride_a = score_stride(), p.stride_b = group_ * s_.head_dim, p.stride_c = s_.head_dim;
    run(p, p_scores + score(j), x + row(j, ld_x), accumulate, sums);
  }

 private:
  ProductShape shape(std::int64_t m, std::int64_t n, std::int64_t k) const {
    ProductShape p{.operands = std::is_same_v<T, bf16> ? Dtype::bf16 : Dtype::f32};
    p.m = m, p.n = n, p.k = k;
    p.batch = s_.kv_heads;
    return p;
  }
  void run(const ProductShape& p, const void* a, const void* b, bool accumulate, void* c) const {
    products_.run(p, a, b, accumulate, c, b_.workspace, stream_);
  }
  /// Head j of the first key/value head: its rows, its scores. Heads of the next one are `group` further.
  std::int64_t row(std::int64_t j, std::int64_t ld) const {
    return (batch_ * s_.length + first_) * ld + j * s_.head_dim;
  }
  std::int64_t key(std::int64_t ld) const { return batch_ * s_.length * ld; }
  std::int64_t score(std::int64_t j) const { return j * rows_ * score_ld(s_); }
  std::int64_t score_stride() const { return group_ * rows_ * score_ld(s_); }

  Products& products_;
  const AttentionShape& s_;
  const Buffers<T>& b_;
  cudaStream_t stream_;
  std::int64_t batch_, first_, rows_, keys_, group_;
};

/// fn(panel) for the panels of a sequence, the last, which sees all keys, first.
template <class T, class Fn>
void for_each_panel(Products& products, const AttentionShape& s, const Buffers<T>& buffers, std::int64_t batch,
                    cudaStream_t stream, const Fn& fn) {
  const std::int64_t height = panel_queries(s), count = (s.length + height - 1) / height;
  for (std::int64_t i = count - 1; i >= 0; --i) fn(Panel<T>(products, s, buffers, batch, i * height, stream), i);
}

}  // namespace

std::uint64_t attention_scratch_bytes(const AttentionShape& shape, Dtype dtype) {
  return dtype == Dtype::bf16 ? Buffers<bf16>(shape, nullptr).bytes : Buffers<float>(shape, nullptr).bytes;
}

template <class T>
void attention_forward(Products& products, const AttentionShape& s, const T* q, const T* k, const T* v, T* out,
                       float* lse, std::byte* scratch, cudaStream_t stream) {
  const Buffers<T> b(s, scratch);
  for (std::int64_t batch = 0; batch < s.batch; ++batch) {
    for_each_panel(products, s, b, batch, stream, [&](const Panel<T>& panel, std::int64_t) {
      for (std::int64_t j = 0; j < panel.group(); ++j) panel.scores(j, q, s.ld_q, k, s.ld_k, b.scores);
      causal_softmax(panel.score_panel(), b.scores, b.p, lse + panel.lse_at(), stream);
      for (std::int64_t j = 0; j < panel.group(); ++j) panel.weighted(j, b.p, v, s.ld_v, out, s.ld_o);
    });
  }
}

template <class T>
void attention_backward(Products& products, const AttentionShape& s, const T* q, const T* k, const T* v, const T* out,
                        const T* dout, const float* lse, T* dq, T* dk, T* dv, std::byte* scratch, cudaStream_t stream) {
  const Buffers<T> b(s, scratch);
  const std::int64_t width = s.kv_heads * s.head_dim;
  const std::int64_t last = (s.length + panel_queries(s) - 1) / panel_queries(s) - 1;
  attention_delta(out, dout, s.ld_o, s.batch, s.length, s.heads, s.head_dim, b.delta, stream);
  for (std::int64_t batch = 0; batch < s.batch; ++batch) {
    for_each_panel(products, s, b, batch, stream, [&](const Panel<T>& panel, std::int64_t index) {
      for (std::int64_t j = 0; j < panel.group(); ++j) {
        panel.scores(j, q, s.ld_q, k, s.ld_k, b.scores);
        panel.scores(j, dout, s.ld_o, v, s.ld_v, b.slopes);
      }
      causal_softmax_backward(panel.score_panel(), b.scores, b.slopes, lse + panel.lse_at(), b.delta + panel.lse_at(),
                              b.p, b.ds, stream);
      for (std::int64_t j = 0; j < panel.group(); ++j) {
        const bool add = index < last || j > 0;
        panel.transposed(j, b.p, dout, s.ld_o, add, b.dv);
        panel.transposed(j, b.ds, q, s.ld_q, add, b.dk);
        panel.weighted(j, b.ds, k, s.ld_k, dq, s.ld_q);
      }
    });
    const std::int64_t at = batch * s.length;
    round_strided(b.dk, nullptr, dk + at * s.ld_k, s.ld_k, s.length, width, stream);
    round_strided(b.dv, nullptr, dv + at * s.ld_v, s.ld_v, s.length, width, stream);
  }
}

#define TRANSLOAD_ATTENTION(T)                                                                                         \
  template void attention_forward(Products&, const AttentionShape&, const T*, const T*, const T*, T*, float*,          \
                                  std::byte*, cudaStream_t);                                                           \
  template void attention_backward(Products&, const AttentionShape&, const T*, const T*, const T*, const T*, const T*, \
                                   const float*, T*, T*, T*, std::byte*, cudaStream_t);
TRANSLOAD_ATTENTION(float)
TRANSLOAD_ATTENTION(bf16)
#undef TRANSLOAD_ATTENTION

}  // namespace transload::kernels::cuda
