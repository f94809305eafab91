// Matrix products by cuBLASLt: bf16 operands with fp32 accumulation, or fp32 throughout. Row-major, as the CPU's.
//
// Law 1: an algorithm is chosen once a shape, by the library's heuristic on this device with a workspace of constant
// size and the alignments that the shape has; never by timing. What was chosen is a table that goes into JSON text and
// comes back, so that a resumed run multiplies as before. Sums of a split inner dimension are added in fp32, in order.
// Threading: all calls from one thread; work runs in the stream given. Nothing on the device is owned.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"

namespace transload::kernels::cuda {

/// C [m, n] = op(A) [m, k] · op(B) [k, n], all row-major; a transposed operand lies as [k, m] or [n, k]. Strides: from
/// one matrix of a batch to the next, elements; 0: the same for all.
struct ProductShape {
  bool a_transposed = false, b_transposed = false;
  Dtype operands = Dtype::f32, result = Dtype::f32;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  /// Bytes of which every address of an operand is a multiple, 16 at most. Filled in by Products::run from A and C;
  /// B's is the caller's where B is a weight, which may lie in a chunk or in a buffer.
  int align_a = 0, align_b = 0, align_c = 0;
  auto operator<=>(const ProductShape&) const = default;
};

/// Device memory that every product may use: a constant of the architecture.
std::uint64_t product_workspace_bytes(int major);
/// The largest of them, for plans made without a device.
inline constexpr std::uint64_t kMostWorkspaceBytes = std::uint64_t{32} << 20;

class Products {
 public:
  /// `device`: what algorithms are chosen for, such as "NVIDIA H200, sm_90". Loads the library.
  Products(std::string device, std::uint64_t workspace_bytes);
  ~Products();

  /// C = op(A)·op(B), or C += (C fp32). `workspace`: 64-byte aligned device memory of workspace_bytes.
  void run(const ProductShape& shape, const void* a, const void* b, bool accumulate, void* c, std::byte* workspace,
           cudaStream_t stream);

  // The four of kernels/cpu/products.h. scratch: scratch_bytes.
  void nt(Dtype dtype, const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
          std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch, cudaStream_t stream);
  void nt_f32(Dtype dtype, const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc,
              std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch, cudaStream_t stream);
  void nn(Dtype dtype, const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, bool accumulate, std::byte* scratch, cudaStream_t stream);
  void tn(Dtype dtype, const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, std::byte* scratch, cudaStream_t stream);

  std::uint64_t workspace_bytes() const;
  /// Library and device: whose algorithms the table holds.
  std::string identity() const;
  /// How many shapes have been chosen so far; grows only.
  std::size_t size() const;
  std::string to_json() const;
  /// Algorithms to use again. False where the text was made by another library or device (or is none of ours): bits
  /// of later products may differ then.
  bool from_json(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Of each of the four, with at most so many tokens and a panel of at most h rows. Without a device: enough for all.
std::uint64_t product_scratch_bytes(std::int64_t tokens, std::int64_t h);

/// c[t, :] = round(acc[t, :] [+ bias]), acc contiguous [tokens, width], ld elements between rows of c. T: float, bf16.
template <class T>
void round_strided(const float* acc, const float* bias, T* c, std::int64_t ld, std::int64_t tokens, std::int64_t width,
                   cudaStream_t stream);

}  // namespace transload::kernels::cuda
