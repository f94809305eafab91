// The CUDA twins of kernels/cpu: the same names and order of arguments, a stream last. Arithmetic only: all pointers
// are device memory unless said otherwise, nothing is owned or allocated, each call starts kernels in `stream` and
// returns. T is float or bf16. Formulas are those of the CPU's headers.
//
// Bits (law 1): no floating-point atomics; the order of every sum is a function of the shape alone, never of an address
// (16-byte accesses are used where alignment permits, with the same elements in the same order in each thread).
// "CPU's bits" below: the same fixed sequence of IEEE-754 operations as the CPU kernel on a processor with fma; NaN in
// fp32 results may have another payload, except where one is stated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/layers.h"

namespace transload::kernels::cuda {

// ---- Optimizer and gradients

/// CPU's bits, NaN 0x7FC00000 included. Any n ≥ 0, any alignment to the element.
void adamw(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale, cudaStream_t stream);

/// Tiles of 1024 elements whose hash (kernels/cpu/element_hash.h) is not known[tile] get residue zero.
void forget_changed(const bf16* weight, std::int64_t n, const std::uint64_t* known, std::int16_t* residue,
                    cudaStream_t stream);
/// known[tile] = the hash of each tile.
void remember(const bf16* weight, std::int64_t n, std::uint64_t* known, cudaStream_t stream);

/// block[i] = or += values[i]. CPU's bits.
void store_or_add(float* block, std::int64_t n, const float* values, bool add, cudaStream_t stream);
/// block[i] = round(values[i]), nearest even. CPU's bits.
void round_values(bf16* block, std::int64_t n, const float* values, cudaStream_t stream);
/// block[i] = round(sums[i] + values[i]). CPU's bits.
void round_sum(const float* sums, bf16* block, std::int64_t n, const float* values, cudaStream_t stream);

/// sums[r] = Σ squares of elements [128·r, 128·(r + 1)) in fp64, in the order of exact_sum.h: CPU's bits; the host adds
/// them to an ExactSum. Room for run_count(n) sums. *not_finite becomes 1 where an element is not finite, and stays as
/// it was otherwise. The first element is the start of a run.
void sum_squares(const bf16* g, std::int64_t n, double* sums, std::uint32_t* not_finite, cudaStream_t stream);
void sum_squares(const float* g, std::int64_t n, double* sums, std::uint32_t* not_finite, cudaStream_t stream);
constexpr std::int64_t run_count(std::int64_t n) { return (n + 127) / 128; }

/// out[i] = the sum over ranks r < count ≤ 1024 of pieces[r · stride + i], in the fixed tree of src/comm/tree_sum.h,
/// whose bits it has. out may be the first piece.
template <class T>
void tree_sum(const T* pieces, std::int64_t stride, int count, T* out, std::int64_t n, cudaStream_t stream);

// ---- Element types, sums of rows and columns

void widen(const bf16* from, float* to, std::int64_t n, cudaStream_t stream);   ///< CPU's bits
void narrow(const float* from, bf16* to, std::int64_t n, cudaStream_t stream);  ///< CPU's bits
/// y = a + b (y may alias either). CPU's bits.
template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n, cudaStream_t stream);
/// y = round(acc [+ bias of each column] [+ residual]). CPU's bits.
template <class T>
void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens, std::int64_t width,
                cudaStream_t stream);
/// db[width] = Σ over tokens of dy: blocks of 64 tokens, ascending. CPU's bits. scratch: norm_scratch_bytes.
template <class T>
void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width, std::byte* scratch,
                cudaStream_t stream);

// ---- Embedding

/// x[t, :] (+)= table[ids[t], :]; `table` points at element param_begin of [vocab, width] and holds `count` elements.
/// Elements outside are not touched. CPU's bits.
template <class T>
void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* table,
                      std::uint64_t param_begin, std::uint64_t count, bool add, T* x, cudaStream_t stream);

/// The tokens sorted by id, then by token. Without it (null) each element of a table looks at every token.
struct EmbeddingIndex {
  const std::int32_t* tokens = nullptr;  ///< [tokens]: token numbers
  const std::int32_t* ids = nullptr;     ///< [tokens]: their ids, ascending
};
/// Fills an index from ids; all three arrays are host memory, `count` long.
void embedding_index(const std::int32_t* ids, std::int64_t count, std::int32_t* index_tokens, std::int32_t* index_ids);
/// out[e − begin] = Σ over tokens ascending of dx, e in [begin, end). CPU's bits, with an index or without.
template <class T>
void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,
                       std::uint64_t begin, std::uint64_t end, float* out, const EmbeddingIndex& index,
                       cudaStream_t stream);

// ---- Norms: sums over a row are a fixed tree of its width. dx must not overlap x or dy.

template <class T>
void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps,
              cudaStream_t stream);
template <class T>
void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                       std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch, cudaStream_t stream);
template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,
                float eps, cudaStream_t stream);
template <class T>
void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                         float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch,
                         cudaStream_t stream);
/// More than the CPU's: mean and rstd of each token lie behind the sums. 16-byte aligned memory.
std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width);

// ---- Activations. CPU's bits.

template <class T>
void swiglu(const T* gate, const T* up, T* y, std::int64_t n, cudaStream_t stream);
template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n, cudaStream_t stream);
template <class T>
void gelu(Gelu kind, const T* x, T* y, std::int64_t n, cudaStream_t stream);
template <class T>
void gelu_backward(Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n, cudaStream_t stream);

// ---- Attention: what lies between its products

/// In place, as the CPU's. CPU's bits.
template <class T>
void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads, std::int64_t head_dim,
            const float* cos, const float* sin, bool inverse, cudaStream_t stream);

/// A panel of query rows of several heads: row r is query first_query + r mod queries of head r / queries (heads of all
/// sequences counted through), and sees keys [0, query] of `length`.
struct ScorePanel {
  std::int64_t heads = 0;    ///< batch · heads
  std::int64_t queries = 0;  ///< rows of the panel
  std::int64_t first_query = 0;
  std::int64_t length = 0;  ///< keys: columns of a row
  std::int64_t ld = 0;      ///< elements between rows of scores, probabilities and their gradients
  std::int64_t lse_ld = 0;  ///< elements between heads of lse and delta: the sequence length
  float scale = 0;          ///< 1/√head_dim
};
/// p = round(softmax(scale · scores)) over the keys that a row sees, 0 for the others up to `length`;
/// lse[head, query] = log Σ exp(scale · scores). A row with a NaN or +∞ among what it sees becomes NaN.
template <class T>
void causal_softmax(const ScorePanel& panel, const float* scores, T* p, float* lse, cudaStream_t stream);
/// delta[head, token of the sequence] = Σ over the head of out · dout; head h of sequence b at row b·heads + h, lse_ld
/// = length. Strides as AttentionShape's ld_o.
template <class T>
void attention_delta(const T* out, const T* dout, std::int64_t ld, std::int64_t batch, std::int64_t length,
                     std::int64_t heads, std::int64_t head_dim, float* delta, cudaStream_t stream);
/// p = round(exp(scale · scores − lse)), ds = round(p · (dp − delta) · scale) with p unrounded; 0 where a row sees
/// nothing. CPU's bits.
template <class T>
void causal_softmax_backward(const ScorePanel& panel, const float* scores, const float* dp, const float* lse,
                             const float* delta, T* p, T* ds, cudaStream_t stream);

// ---- Loss

void loss_reset(LossRows rows, std::int64_t tokens, cudaStream_t stream);
/// One block a token; sums in a fixed tree of the panel's width. A target below 0: no loss and no gradient.
void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                const std::int32_t* targets, LossRows rows, cudaStream_t stream);
/// *sum = Σ over tokens of log(sum) + max − target in fp64, in a fixed tree of `tokens`.
void loss_sum(LossRows rows, std::int64_t tokens, double* sum, cudaStream_t stream);
/// dlogits[tokens, width] = (softmax − onehot) · scale.
template <class T>
void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                         std::int64_t width, const std::int32_t* targets, LossRows rows, float scale, T* dlogits,
                         cudaStream_t stream);

}  // namespace transload::kernels::cuda
