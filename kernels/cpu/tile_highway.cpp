// The plain fp32 product: B is packed into columns of two vectors, A into rows of six, in blocks of the inner dimension
// that are a function of nothing; 6 × 2 vectors of sums stay in registers.
#include <algorithm>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tile_highway.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

constexpr std::int64_t kInner = 256;  // elements of the inner dimension in one block
constexpr std::int64_t kRows = 6;

// to[inner][lane]: `count` ≤ `lanes` rows or columns of an operand, element (i, p) at from[i·outer_step +
// p·inner_step].
HWY_ATTR void pack(const float* from, std::int64_t outer_step, std::int64_t inner_step, std::int64_t count,
                   std::int64_t lanes, std::int64_t inner, float* to) {
  for (std::int64_t p = 0; p < inner; ++p) {
    for (std::int64_t i = 0; i < count; ++i) to[p * lanes + i] = from[i * outer_step + p * inner_step];
    for (std::int64_t i = count; i < lanes; ++i) to[p * lanes + i] = 0.0f;
  }
}

// sums[6][2 vectors] = packed A (6 a step) · packed B (two vectors a step).
HWY_ATTR void multiply(const float* a, const float* b, std::int64_t inner, float* sums) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  V s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00;
  V s30 = s00, s31 = s00, s40 = s00, s41 = s00, s50 = s00, s51 = s00;
  for (std::int64_t p = 0; p < inner; ++p, a += kRows, b += 2 * lanes) {
    const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes);
    V x = hn::Set(d, a[0]);
    s00 = hn::MulAdd(x, b0, s00), s01 = hn::MulAdd(x, b1, s01);
    x = hn::Set(d, a[1]);
    s10 = hn::MulAdd(x, b0, s10), s11 = hn::MulAdd(x, b1, s11);
    x = hn::Set(d, a[2]);
    s20 = hn::MulAdd(x, b0, s20), s21 = hn::MulAdd(x, b1, s21);
    x = hn::Set(d, a[3]);
    s30 = hn::MulAdd(x, b0, s30), s31 = hn::MulAdd(x, b1, s31);
    x = hn::Set(d, a[4]);
    s40 = hn::MulAdd(x, b0, s40), s41 = hn::MulAdd(x, b1, s41);
    x = hn::Set(d, a[5]);
    s50 = hn::MulAdd(x, b0, s50), s51 = hn::MulAdd(x, b1, s51);
  }
  const V all[] = {s00, s01, s10, s11, s20, s21, s30, s31, s40, s41, s50, s51};
  for (std::size_t i = 0; i < 12; ++i) hn::StoreU(all[i], d, sums + i * lanes);
}

HWY_ATTR void add_sums(const float* sums, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool accumulate,
                       float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const float v = sums[i * stride + j];
      c[i * ldc + j] = accumulate ? c[i * ldc + j] + v : v;
    }
  }
}

HWY_ATTR void product(const TileForm& f, const float* a, const float* b, float* c) {
  const std::int64_t width = 2 * static_cast<std::int64_t>(hn::Lanes(D()));
  const std::int64_t panels = (f.n + width - 1) / width;
  float* packed_b = thread_buffer(0, panels * width * kInner + kRows * kInner + kRows * width);
  float* packed_a = packed_b + panels * width * kInner;
  float* sums = packed_a + kRows * kInner;
  const std::int64_t a_outer = f.a_transposed ? 1 : f.lda, a_inner = f.a_transposed ? f.lda : 1;
  const std::int64_t b_outer = f.b_transposed ? f.ldb : 1, b_inner = f.b_transposed ? 1 : f.ldb;
  for (std::int64_t k = 0; k < f.k; k += kInner) {
    const std::int64_t inner = std::min(kInner, f.k - k);
    const bool accumulate = f.accumulate || k > 0;
    for (std::int64_t j = 0; j < f.n; j += width) {
      pack(b + j * b_outer + k * b_inner, b_outer, b_inner, std::min(width, f.n - j), width, inner,
           packed_b + j * inner);
    }
    for (std::int64_t i = 0; i < f.m; i += kRows) {
      const std::int64_t rows = std::min(kRows, f.m - i);
      pack(a + i * a_outer + k * a_inner, a_outer, a_inner, rows, kRows, inner, packed_a);
      for (std::int64_t j = 0; j < f.n; j += width) {
        multiply(packed_a, packed_b + j * inner, inner, sums);
        add_sums(sums, rows, std::min(width, f.n - j), width, accumulate, c + i * f.ldc + j, f.ldc);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {
HWY_EXPORT(product);
}

void tile_product_highway(const TileForm& form, const float* a, const float* b, float* c) {
  HWY_DYNAMIC_DISPATCH(product)(form, a, b, c);
}

#ifndef TRANSLOAD_HAVE_ONEDNN
void tile_product(const TileForm& form, const void* a, const void* b, float* c) {
  tile_product_highway(form, static_cast<const float*>(a), static_cast<const float*>(b), c);
}
bool bf16_products_are_native() { return false; }
std::string tile_library() { return "Highway"; }
std::uint64_t tile_primitives_created() { return 0; }
#endif

}  // namespace transload::kernels
#endif
