#include "kernels/cpu/products.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile.h"

namespace transload::kernels {
namespace {

constexpr std::int64_t kPanelElements = std::int64_t{1} << 20;
constexpr std::int64_t kPanelRows = 32;
constexpr std::int64_t kTileRows = 256, kTileColumns = 256, kLeastColumns = 64;
constexpr std::int64_t kWantedTiles = 8;  // enough to balance a few threads

struct Tile {
  std::int64_t row, rows, column, columns;
};

/// Tiles of a result [rows, columns]: a function of its shape alone. Tiles of one column block follow one another, so
/// that a thread meets its part of the weight again while it is in cache.
template <class Fn>
void for_each_tile(std::int64_t rows, std::int64_t columns, const Fn& fn) {
  const std::int64_t row_blocks = (rows + kTileRows - 1) / kTileRows;
  std::int64_t width = kTileColumns;
  while (width > kLeastColumns && row_blocks * ((columns + width - 1) / width) < kWantedTiles) width /= 2;
  const std::int64_t column_blocks = (columns + width - 1) / width;
  parallel_tasks(row_blocks * column_blocks, [&](std::int64_t i) {
    const std::int64_t row = i % row_blocks * kTileRows, column = i / row_blocks * width;
    fn(Tile{row, std::min(kTileRows, rows - row), column, std::min(width, columns - column)});
  });
}

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

/// An operand as the tiles read it.
struct Operand {
  const std::byte* data;
  std::int64_t ld;
  std::uint64_t element;
  const void* at(std::int64_t row, std::int64_t column) const {
    return data + static_cast<std::uint64_t>(row * ld + column) * element;
  }
};

}  // namespace

std::int64_t panel_rows(std::int64_t rows, std::int64_t columns) {
  const std::int64_t fit = kPanelElements / std::max<std::int64_t>(1, columns) / kPanelRows * kPanelRows;
  return std::min(rows, std::max(kPanelRows, fit));
}

struct Products::Impl {
  Dtype dtype;
  bool widened;  // operands are bf16 and multiplied as fp32

  Dtype operands() const { return widened ? Dtype::f32 : dtype; }

  /// [rows, columns] as it is, or widened into `scratch`, which moves on.
  Operand operand(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                  std::byte*& scratch) const {
    if (!widened) return {static_cast<const std::byte*>(from), ld, size_of(dtype)};
    const auto* source = static_cast<const bf16*>(from);
    auto* to = reinterpret_cast<float*>(scratch);
    scratch += aligned(static_cast<std::uint64_t>(rows * columns) * sizeof(float));
    parallel_blocks(rows, rows_in_block(columns, 1 << 15), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) widen_row(source + r * ld, to + r * columns, columns);
    });
    return {reinterpret_cast<const std::byte*>(to), columns, sizeof(float)};
  }

  /// C[T,h] = A · Bᵀ, each tile handed to store(tile, sums, ld) in fp32 where it does not lie in C already.
  template <class Store>
  void nt(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T, std::int64_t h,
          std::int64_t K, std::byte* scratch, const Store& store) const {
    const Operand left = operand(a, lda, T, K, scratch), right = operand(b, K, h, K, scratch);
    for_each_tile(T, h, [&](const Tile& t) {
      TileForm form{.m = t.rows, .n = t.columns, .k = K, .lda = left.ld, .ldb = right.ld, .ldc = ldc};
      form.b_transposed = true;
      form.operands = operands();
      float* sums = c == nullptr ? nullptr : c + t.row * ldc + t.column;
      if (sums == nullptr) {
        form.ldc = t.columns;
        sums = thread_buffer(1, kTileRows * kTileColumns);
      }
      tile_product(form, left.at(t.row, 0), right.at(t.column, 0), sums);
      store(t, sums, form.ldc);
    });
  }
};

Products::Products(Dtype dtype) {
  TRANSLOAD_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, "products of {}", name_of(dtype));
  impl_ = std::make_unique<Impl>(Impl{dtype, dtype == Dtype::bf16 && !bf16_products_are_native()});
}
Products::~Products() = default;

void Products::nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
                  std::int64_t T, std::int64_t h, std::int64_t K, std::byte* scratch) {
  const auto finish = [&](auto* to, const Tile& t, const float* sums, std::int64_t ld) {
    const float* part = bias == nullptr ? nullptr : bias + t.column;
    for (std::int64_t r = 0; r < t.rows; ++r) {
      round_row(sums + r * ld, part, to + (t.row + r) * ldc + t.column, t.columns);
    }
  };
  if (impl_->dtype == Dtype::bf16) {
    impl_->nt(a, lda, b, nullptr, ldc, T, h, K, scratch,
              [&](const Tile& t, const float* sums, std::int64_t ld) { finish(static_cast<bf16*>(c), t, sums, ld); });
    return;
  }
  auto* out = static_cast<float*>(c);
  impl_->nt(a, lda, b, out, ldc, T, h, K, scratch, [&](const Tile& t, const float* sums, std::int64_t ld) {
    if (bias != nullptr) finish(out, t, sums, ld);
  });
}

void Products::nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
                      std::int64_t h, std::int64_t K, std::byte* scratch) {
  impl_->nt(a, lda, b, c, ldc, T, h, K, scratch, [](const Tile&, const float*, std::int64_t) {});
}

void Products::nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
                  std::int64_t h, std::int64_t K, bool accumulate, std::byte* scratch) {
  const Operand left = impl_->operand(a, lda, T, h, scratch), right = impl_->operand(b, K, h, K, scratch);
  for_each_tile(T, K, [&](const Tile& t) {
    TileForm form{.m = t.rows, .n = t.columns, .k = h, .lda = left.ld, .ldb = right.ld, .ldc = ldc};
    form.accumulate = accumulate;
    form.operands = impl_->operands();
    tile_product(form, left.at(t.row, 0), right.at(0, t.column), c + t.row * ldc + t.column);
  });
}

void Products::tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t T,
                  std::int64_t h, std::int64_t K, std::byte* scratch) {
  const Operand left = impl_->operand(a, lda, T, h, scratch), right = impl_->operand(b, ldb, T, K, scratch);
  for_each_tile(h, K, [&](const Tile& t) {
    TileForm form{.m = t.rows, .n = t.columns, .k = T, .lda = left.ld, .ldb = right.ld, .ldc = K};
    form.a_transposed = true;
    form.operands = impl_->operands();
    tile_product(form, left.at(0, t.row), right.at(0, t.column), g + t.row * K + t.column);
  });
}

std::uint64_t Products::scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t K) const {
  if (!impl_->widened) return 0;
  const auto of = [](std::int64_t rows, std::int64_t columns) {
    return aligned(static_cast<std::uint64_t>(rows * columns) * sizeof(float));
  };
  return std::max({of(tokens, K) + of(h, K), of(tokens, h) + of(h, K), of(tokens, h) + of(tokens, K)});
}

std::string Products::facts() const {
  if (impl_->widened) return tile_library() + ", fp32 (bf16 widened: no bf16 dot product here)";
  return tile_library() + (impl_->dtype == Dtype::bf16 ? ", bf16" : ", fp32");
}

}  // namespace transload::kernels
