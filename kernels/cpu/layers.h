// The small kernels of a transformer layer. Row-major [tokens, features]; arithmetic in fp32 on values of T (float or
// bf16), rounded once when stored (to nearest even). Vectors of parameters come as fp32. Parallel over rows
// (tbb::parallel_for); sums over tokens run in fixed blocks of 64 tokens, then ascending: bits depend on shapes alone.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace transload::kernels {

/// y = x · rsqrt(mean(x²) + eps) · weight.
template <class T>
void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps);
/// dx (= or += when accumulate), dweight[width] (= ). rstd is recomputed from x. scratch: norm_scratch_bytes.
template <class T>
void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                       std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch);
/// y = (x − mean) · rsqrt(var + eps) · weight + bias.
template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,
                float eps);
template <class T>
void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                         float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch);
std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width);

/// y = silu(gate) · up, n elements. Backward gives dgate, dup (may alias gate and up).
template <class T>
void swiglu(const T* gate, const T* up, T* y, std::int64_t n);
template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n);

enum class Gelu : std::uint8_t { tanh, exact };  ///< tanh: "gelu_new", "gelu_pytorch_tanh"; exact: "gelu"
template <class T>
void gelu(Gelu kind, const T* x, T* y, std::int64_t n);
template <class T>
void gelu_backward(Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n);

/// y = a + b (y may alias either).
template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n);
/// y = round(acc [+ bias of each column] [+ residual]); bias (fp32) and residual may be null. tokens × width,
/// contiguous.
template <class T>
void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens, std::int64_t width);
/// db[width] = Σ over tokens of dy (row stride ld). scratch: norm_scratch_bytes.
template <class T>
void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width, std::byte* scratch);

/// n values between element types.
void widen(const bf16* from, float* to, std::int64_t n);
void narrow(const float* from, bf16* to, std::int64_t n);  ///< nearest even

}  // namespace transload::kernels
