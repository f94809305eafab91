// Matrix products under law 1's panel rule. A weight is used in panels of rows whose height is a function of its shape
// alone; a panel's product is cut into tiles (token block × row or column block) that are a function of shapes alone;
// each tile is computed by one thread with the inner dimension whole. Bits do not depend on the number of threads or
// on addresses. Tiles run under tbb::parallel_for in the caller's arena.
//
// dtype bf16: inputs bf16, fp32 accumulation. Where the processor has no bf16 dot product, operands are widened to
// fp32 (exact) and multiplied there; facts() says which. dtype f32: fp32 throughout.
// Activations are row-major [tokens, features]; leading dimensions in elements. `scratch`: scratch_bytes(), 64-byte
// aligned, free to reuse when the call returns. Arrays of `dtype` are passed as void*.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"

namespace transload::kernels {

/// Rows of a weight [rows, columns] in one panel: at most 2^20 elements, a multiple of 32 (or all rows). At least 32.
std::int64_t panel_rows(std::int64_t rows, std::int64_t columns);

class Products {
 public:
  explicit Products(Dtype dtype);
  ~Products();

  /// C[T,h] = A[T,K] · B[h,K]ᵀ + bias[h]. B contiguous. bias fp32 or null. C in dtype.
  void nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc, std::int64_t T,
          std::int64_t h, std::int64_t K, std::byte* scratch);
  /// The same with C in fp32 (logits).
  void nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
              std::int64_t h, std::int64_t K, std::byte* scratch);
  /// C[T,K] (fp32, ldc) = or += A[T,h] · B[h,K]. B contiguous.
  void nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T, std::int64_t h,
          std::int64_t K, bool accumulate, std::byte* scratch);
  /// G[h,K] (fp32, contiguous) = A[T,h]ᵀ · B[T,K].
  void tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t T, std::int64_t h,
          std::int64_t K, std::byte* scratch);

  /// Enough for each of the four with T ≤ tokens and a panel of at most h rows and K columns.
  std::uint64_t scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t K) const;
  /// "oneDNN 2.6.3, bf16" | "oneDNN 2.6.3, fp32 (bf16 widened: no bf16 dot product here)" | "Highway, fp32 …".
  std::string facts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload::kernels
