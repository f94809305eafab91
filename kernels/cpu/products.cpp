#include "kernels/cpu/products.h"

#include <algorithm>
#include <utility>

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

std::int64_t blocks_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
/// The size of `count` nearly equal parts of n, a multiple of `unit` or n itself.
std::int64_t equal_part(std::int64_t n, std::int64_t count, std::int64_t unit) {
  return std::min(n, blocks_of(blocks_of(n, count), unit) * unit);
}

/// The tiles of a result [rows, columns]: a function of its shape alone.
struct Tiling {
  std::int64_t rows, columns, tile_rows, tile_columns;

  Tiling(std::int64_t result_rows, std::int64_t result_columns) : rows(result_rows), columns(result_columns) {
    TRANSLOAD_CHECK(rows > 0 && columns > 0, "a product of {} rows and {} columns", rows, columns);
    tile_rows = equal_part(rows, blocks_of(rows, kTileRows), 16);
    std::int64_t count = blocks_of(columns, kTileColumns);
    while (row_blocks() * count < kWantedTiles && columns / (count + 1) >= kLeastColumns) ++count;
    tile_columns = equal_part(columns, count, 32);
  }
  std::int64_t row_blocks() const { return blocks_of(rows, tile_rows); }
  std::int64_t column_blocks() const { return blocks_of(columns, tile_columns); }

  struct Tile {
    std::int64_t row, rows, column, columns;
  };
  /// Tiles of one column block follow one another, so that a thread meets its part of the weight again in its cache.
  template <class Fn>
  void for_each(const Fn& fn) const {
    parallel_tasks(row_blocks() * column_blocks(), [&](std::int64_t i) {
      const std::int64_t row = i % row_blocks() * tile_rows, column = i / row_blocks() * tile_columns;
      fn(Tile{row, std::min(tile_rows, rows - row), column, std::min(tile_columns, columns - column)});
    });
  }
};
using Tile = Tiling::Tile;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

/// An operand as the tiles read it: row-major, or packed into blocks of columns, each dense and one after the other.
struct Operand {
  const std::byte* data;
  std::uint64_t element;
  std::int64_t rows, columns, ld;
  std::int64_t block = 0;  ///< columns of a block; 0: not packed

  /// `row` ahead of a run of rows that spans all columns.
  const void* from_row(std::int64_t row) const { return data + static_cast<std::uint64_t>(row * ld) * element; }
  /// The columns from `column` on, where a block begins.
  const void* from_column(std::int64_t column) const {
    return data + static_cast<std::uint64_t>(block == 0 ? column : column * rows) * element;
  }
  std::int64_t ld_at(std::int64_t column) const { return block == 0 ? ld : std::min(block, columns - column); }
};

void copy_row(const float* from, float* to, std::int64_t n) { std::copy_n(from, n, to); }
void copy_row(const bf16* from, bf16* to, std::int64_t n) { std::copy_n(from, n, to); }
void copy_row(const bf16* from, float* to, std::int64_t n) { widen_row(from, to, n); }

/// [rows, columns] into dense blocks of `block` columns.
template <class From, class To>
void pack(const From* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, std::int64_t block, To* to) {
  parallel_blocks(rows, rows_in_block(columns, 1 << 15), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t column = 0; column < columns; column += block) {
      const std::int64_t width = std::min(block, columns - column);
      To* out = to + column * rows;
      for (std::int64_t r = begin; r < end; ++r) copy_row(from + r * ld + column, out + r * width, width);
    }
  });
}

}  // namespace

std::int64_t panel_rows(std::int64_t rows, std::int64_t columns) {
  const std::int64_t fit = kPanelElements / std::max<std::int64_t>(1, columns) / kPanelRows * kPanelRows;
  return std::min(rows, std::max(kPanelRows, fit));
}

struct Products::Impl {
  Dtype dtype;
  bool widened;  // operands are bf16 and multiplied as fp32

  Dtype operands() const { return widened ? Dtype::f32 : dtype; }

  /// As it is, or widened into `scratch`, which moves on.
  Operand plain(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, std::byte*& scratch) const {
    if (!widened) return {static_cast<const std::byte*>(from), size_of(dtype), rows, columns, ld};
    Operand o = packed(from, ld, rows, columns, columns, scratch);
    o.block = 0;
    return o;
  }

  /// Packed into blocks of columns in `scratch`, which moves on: rows of a block lie close, whatever ld is (rows a
  /// power of two apart share few cache sets), and oneDNN's faster kernels take dense operands only.
  Operand packed(const void* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, std::int64_t block,
                 std::byte*& scratch) const {
    std::byte* to = scratch;
    const std::uint64_t element = size_of(operands());
    scratch += aligned(static_cast<std::uint64_t>(rows * columns) * element);
    if (dtype == Dtype::f32) {
      pack(static_cast<const float*>(from), ld, rows, columns, block, reinterpret_cast<float*>(to));
    } else if (widened) {
      pack(static_cast<const bf16*>(from), ld, rows, columns, block, reinterpret_cast<float*>(to));
    } else {
      pack(static_cast<const bf16*>(from), ld, rows, columns, block, reinterpret_cast<bf16*>(to));
    }
    return {to, element, rows, columns, columns, block};
  }

  /// C[T,h] = A · Bᵀ, tile by tile: into what place(tile) answers {address, leading dimension}, then done(tile) while
  /// the tile is in cache.
  template <class Place, class Done>
  void nt(const void* a, std::int64_t lda, const void* b, std::int64_t T, std::int64_t h, std::int64_t K,
          std::byte* scratch, const Place& place, const Done& done) const {
    const Operand left = plain(a, lda, T, K, scratch), right = plain(b, K, h, K, scratch);
    Tiling(T, h).for_each([&](const Tile& t) {
      const auto [c, ldc] = place(t);
      TileForm form{.m = t.rows, .n = t.columns, .k = K, .lda = left.ld, .ldb = right.ld, .ldc = ldc};
      form.b_transposed = true;
      form.operands = operands();
      tile_product(form, left.from_row(t.row), right.from_row(t.column), c);
      done(t, c);
    });
  }

  /// nt with bias, rounded to the result's type.
  template <class To>
  void nt_rounded(const void* a, std::int64_t lda, const void* b, const float* bias, To* c, std::int64_t ldc,
                  std::int64_t T, std::int64_t h, std::int64_t K, std::byte* scratch) const {
    const auto dense = [](const Tile& t) { return std::pair(thread_buffer(1, kTileRows * kTileColumns), t.columns); };
    nt(a, lda, b, T, h, K, scratch, dense, [&](const Tile& t, const float* sums) {
      const float* part = bias == nullptr ? nullptr : bias + t.column;
      for (std::int64_t r = 0; r < t.rows; ++r) {
        round_row(sums + r * t.columns, part, c + (t.row + r) * ldc + t.column, t.columns);
      }
    });
  }

  /// nt whose result needs neither bias nor rounding.
  void nt_direct(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
                 std::int64_t h, std::int64_t K, std::byte* scratch) const {
    const auto in_place = [&](const Tile& t) { return std::pair(c + t.row * ldc + t.column, ldc); };
    nt(a, lda, b, T, h, K, scratch, in_place, [](const Tile&, const float*) {});
  }
};

Products::Products(Dtype dtype) {
  TRANSLOAD_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, "products of {}", name_of(dtype));
  impl_ = std::make_unique<Impl>(Impl{dtype, dtype == Dtype::bf16 && !bf16_products_are_native()});
}
Products::~Products() = default;

void Products::nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
                  std::int64_t T, std::int64_t h, std::int64_t K, std::byte* scratch) {
  if (impl_->dtype == Dtype::f32) {
    impl_->nt_rounded(a, lda, b, bias, static_cast<float*>(c), ldc, T, h, K, scratch);
  } else {
    impl_->nt_rounded(a, lda, b, bias, static_cast<bf16*>(c), ldc, T, h, K, scratch);
  }
}

void Products::nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
                      std::int64_t h, std::int64_t K, std::byte* scratch) {
  impl_->nt_direct(a, lda, b, c, ldc, T, h, K, scratch);
}

void Products::nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t T,
                  std::int64_t h, std::int64_t K, bool accumulate, std::byte* scratch) {
  const Tiling tiling(T, K);
  const Operand left = impl_->plain(a, lda, T, h, scratch);
  const Operand right = impl_->packed(b, K, h, K, tiling.tile_columns, scratch);
  tiling.for_each([&](const Tile& t) {
    TileForm form{.m = t.rows, .n = t.columns, .k = h, .lda = left.ld, .ldb = right.ld_at(t.column), .ldc = ldc};
    form.accumulate = accumulate;
    form.operands = impl_->operands();
    tile_product(form, left.from_row(t.row), right.from_column(t.column), c + t.row * ldc + t.column);
  });
}

void Products::tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t T,
                  std::int64_t h, std::int64_t K, std::byte* scratch) {
  const Tiling tiling(h, K);
  const Operand left = impl_->packed(a, lda, T, h, tiling.tile_rows, scratch);
  const Operand right = impl_->packed(b, ldb, T, K, tiling.tile_columns, scratch);
  tiling.for_each([&](const Tile& t) {
    TileForm form{
        .m = t.rows, .n = t.columns, .k = T, .lda = left.ld_at(t.row), .ldb = right.ld_at(t.column), .ldc = K};
    form.a_transposed = true;
    form.operands = impl_->operands();
    tile_product(form, left.from_column(t.row), right.from_column(t.column), g + t.row * K + t.column);
  });
}

std::uint64_t Products::scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t K) const {
  const auto of = [&](std::int64_t rows, std::int64_t columns) {
    return aligned(static_cast<std::uint64_t>(rows * columns) * size_of(impl_->operands()));
  };
  return std::max({of(tokens, K) + of(h, K), of(tokens, h) + of(h, K), of(tokens, h) + of(tokens, K)});
}

std::string Products::facts() const {
  if (impl_->widened) return tile_library() + ", fp32 (bf16 widened: no bf16 dot product here)";
  return tile_library() + (impl_->dtype == Dtype::bf16 ? ", bf16" : ", fp32");
}

}  // namespace transload::kernels
