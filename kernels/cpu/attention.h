// Causal attention over panels of query rows: memory grows with panel × length, never with length². Products in the
// activation's dtype with fp32 accumulation (widened like products.h), softmax in fp32. Query head j uses key/value
// head j / (heads / kv_heads). Deterministic: one task owns each output element; sums over panels and grouped heads
// run in ascending order. T is float or bf16.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

struct AttentionShape {
  std::int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t ld_q = 0, ld_k = 0, ld_v = 0, ld_o = 0;  ///< elements between tokens; head h at h·head_dim
  float scale = 0;                                      ///< 1/√head_dim
};
std::uint64_t attention_scratch_bytes(const AttentionShape& shape, Dtype dtype);

/// out, lse[batch, heads, length] (fp32; log of the sum of exponentials of scaled scores).
template <class T>
void attention_forward(const AttentionShape& s, const T* q, const T* k, const T* v, T* out, float* lse,
                       std::byte* scratch);
/// dq, dk, dv with the strides of q, k, v; overwritten. dout has ld_o.
template <class T>
void attention_backward(const AttentionShape& s, const T* q, const T* k, const T* v, const T* out, const T* dout,
                        const float* lse, T* dq, T* dk, T* dv, std::byte* scratch);

/// Rotary embedding in place on `heads` heads of head_dim (pairs (i, i + head_dim/2), Hugging Face's rotate_half);
/// cos/sin: [length, head_dim/2] fp32; token t of a batch has position t mod length. inverse: the transpose (backward).
template <class T>
void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads, std::int64_t head_dim,
            const float* cos, const float* sin, bool inverse);

}  // namespace transload::kernels
