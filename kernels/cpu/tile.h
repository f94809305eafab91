// One small matrix product on one thread: what products.h and attention.h are made of. C[m,n] (fp32) = or += A[m,k] ·
// B[k,n], row-major, either operand perhaps stored transposed, both of one element type. The bits are a function of the
// form alone: no threads, no addresses, the inner dimension in ascending pieces.
//
// By oneDNN where the build has it, by a Highway kernel otherwise (fp32 only). Thread-safe. Buffers and primitives of a
// thread are kept and used again: a form that was seen before allocates nothing of ours.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace transload::kernels {

struct TileForm {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< elements between stored rows
  bool a_transposed = false;               ///< A is stored [k, m]
  bool b_transposed = false;               ///< B is stored [n, k]
  bool accumulate = false;
  Dtype operands = Dtype::f32;
  bool operator==(const TileForm&) const = default;
};

void tile_product(const TileForm& form, const void* a, const void* b, float* c);

/// The Highway kernel, in every build. fp32 operands.
void tile_product_highway(const TileForm& form, const float* a, const float* b, float* c);

/// True where tile_product multiplies bf16 with bf16 dot products. Where it does not, callers widen to fp32.
bool bf16_products_are_native();
/// "oneDNN 2.6.3" | "Highway".
std::string tile_library();
/// Primitives created so far: it stops growing once every form was seen.
std::uint64_t tile_primitives_created();

/// A buffer of this thread with room for `count` floats, 64-byte aligned, kept for its next call. `slot` < 4 tells
/// buffers that are in use at the same time apart.
float* thread_buffer(int slot, std::int64_t count);

}  // namespace transload::kernels
