// Causal attention over panels of query rows: products of all heads of a sequence at once (strided batches), the
// softmax kernel between them. Memory grows with panel × length, never with length². Formulas: kernels/cpu/attention.h.
//
// Fixed order (law 1): panels from the last to the first, query heads of a key/value head ascending; sums over both
// are fp32 and rounded once. The panel's height is a function of the shape.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cuda/products.h"

namespace transload::kernels::cuda {

/// Of forward and backward, products' workspace included. No device is needed.
std::uint64_t attention_scratch_bytes(const AttentionShape& shape, Dtype dtype);

template <class T>
void attention_forward(Products& products, const AttentionShape& s, const T* q, const T* k, const T* v, T* out,
                       float* lse, std::byte* scratch, cudaStream_t stream);
template <class T>
void attention_backward(Products& products, const AttentionShape& s, const T* q, const T* k, const T* v, const T* out,
                        const T* dout, const float* lse, T* dq, T* dk, T* dv, std::byte* scratch, cudaStream_t stream);

}  // namespace transload::kernels::cuda
