#include "kernels/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile.h"

namespace transload::kernels {
namespace {

constexpr std::int64_t kQueries = 128;         // rows of a panel
constexpr std::int64_t kKeys = kScoreColumns;  // columns of a block of scores, a multiple of kQueries
constexpr std::int64_t kScores = kQueries * kKeys;

/// Rows [rows, head_dim] of one head as products read them: dense (in an activation, rows lie so far apart that few
/// fit a cache at once), and widened where E is float and T bf16.
template <class T, class E>
void gather(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim, E* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if constexpr (std::is_same_v<E, T>) {
      std::copy_n(from + r * ld, head_dim, to + r * head_dim);
    } else {
      widen_row(from + r * ld, to + r * head_dim, head_dim);
    }
  }
}

template <class E>
constexpr Dtype dtype_of() {
  return std::is_same_v<E, float> ? Dtype::f32 : Dtype::bf16;
}

/// A [m, k] · B [n, k]ᵀ into a block of scores.
template <class E>
void scores(const E* a, const E* b, std::int64_t m, std::int64_t n, std::int64_t k, float* c) {
  TileForm form{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = kKeys};
  form.b_transposed = true;
  form.operands = dtype_of<E>();
  tile_product(form, a, b, c);
}
/// C [m, n] (+)= P [m, k] · B [k, n], P a block of scores.
template <class E>
void weighted(const E* p, const E* b, std::int64_t m, std::int64_t n, std::int64_t k, float* c, bool accumulate) {
  TileForm form{.m = m, .n = n, .k = k, .lda = kKeys, .ldb = n, .ldc = n};
  form.accumulate = accumulate;
  form.operands = dtype_of<E>();
  tile_product(form, p, b, c);
}
/// C [m, n] += P [k, m]ᵀ · B [k, n], P a block of scores.
template <class E>
void weighted_transposed(const E* p, const E* b, std::int64_t m, std::int64_t n, std::int64_t k, float* c) {
  TileForm form{.m = m, .n = n, .k = k, .lda = kKeys, .ldb = n, .ldc = n};
  form.a_transposed = true;
  form.accumulate = true;
  form.operands = dtype_of<E>();
  tile_product(form, p, b, c);
}

/// The running thread's blocks: scores and their gradients in fp32 and as operands, operands, a panel's result.
template <class E>
struct Blocks {
  explicit Blocks(std::int64_t head_dim) {
    float* next = thread_buffer(1, 4 * kScores + (3 * kQueries + 2 * kKeys) * head_dim);
    const auto take = [&next](std::int64_t count) {
      float* taken = next;
      next += count;
      return taken;
    };
    s = take(kScores);
    ds = take(kScores);
    p = reinterpret_cast<E*>(std::is_same_v<E, float> ? s : take(kScores));
    dp = reinterpret_cast<E*>(std::is_same_v<E, float> ? ds : take(kScores));
    result = take(kQueries * head_dim);
    q = reinterpret_cast<E*>(take(kQueries * head_dim));
    dout = reinterpret_cast<E*>(take(kQueries * head_dim));
    k = reinterpret_cast<E*>(take(kKeys * head_dim));
    v = reinterpret_cast<E*>(take(kKeys * head_dim));
  }
  float *s, *ds, *result;
  E *p, *dp, *q, *dout, *k, *v;
};

std::int64_t panels(const AttentionShape& s) { return (s.length + kQueries - 1) / kQueries; }

/// One panel of query rows of one head.
struct Panel {
  std::int64_t batch, head, kv_head, first, rows;
  /// Where `token` of this batch and a head begin.
  std::int64_t query(const AttentionShape& s, std::int64_t ld) const {
    return (batch * s.length + first) * ld + head * s.head_dim;
  }
  std::int64_t key(const AttentionShape& s, std::int64_t ld, std::int64_t token) const {
    return (batch * s.length + token) * ld + kv_head * s.head_dim;
  }
  std::int64_t row(const AttentionShape& s) const { return (batch * s.heads + head) * s.length + first; }
};
Panel panel_of(const AttentionShape& s, std::int64_t batch, std::int64_t head, std::int64_t index) {
  const std::int64_t first = index * kQueries;
  return {batch, head, head / (s.heads / s.kv_heads), first, std::min(kQueries, s.length - first)};
}

template <class E, class T>
void forward_panel(const AttentionShape& s, const Panel& at, const T* q, const T* k, const T* v, T* out, float* lse) {
  const auto& kernels = attention_row_kernels<T, E>();
  const Blocks<E> blocks(s.head_dim);
  std::array<float, kQueries> max, sum;
  max.fill(-std::numeric_limits<float>::infinity());
  sum.fill(0.0f);
  gather(q + at.query(s, s.ld_q), s.ld_q, at.rows, s.head_dim, blocks.q);
  const std::int64_t limit = at.first + at.rows;
  for (std::int64_t key = 0; key < limit; key += kKeys) {
    const std::int64_t columns = std::min(kKeys, limit - key);
    gather(k + at.key(s, s.ld_k, key), s.ld_k, columns, s.head_dim, blocks.k);
    gather(v + at.key(s, s.ld_v, key), s.ld_v, columns, s.head_dim, blocks.v);
    scores(blocks.q, blocks.k, at.rows, columns, s.head_dim, blocks.s);
    for (std::int64_t r = 0; r < at.rows; ++r) {
      const std::int64_t valid = std::min(columns, at.first + r + 1 - key);
      const auto i = static_cast<std::size_t>(r);
      const float earlier =
          kernels.forward(blocks.s + r * kKeys, valid, columns, s.scale, max[i], sum[i], blocks.p + r * kKeys);
      if (key > 0) scale_row(blocks.result + r * s.head_dim, s.head_dim, earlier);
    }
    weighted(blocks.p, blocks.v, at.rows, s.head_dim, columns, blocks.result, key > 0);
  }
  for (std::int64_t r = 0; r < at.rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    divide_row(blocks.result + r * s.head_dim, s.head_dim, sum[i], out + at.query(s, s.ld_o) + r * s.ld_o);
    lse[at.row(s) + r] = max[i] + std::log(sum[i]);
  }
}

/// dk, dv: [length, head_dim] in fp32, of this key/value head; the panel's part is added.
template <class E, class T>
void backward_panel(const AttentionShape& s, const Panel& at, const T* q, const T* k, const T* v, const T* out,
                    const T* dout, const float* lse, T* dq, float* dk, float* dv) {
  const auto& kernels = attention_row_kernels<T, E>();
  const Blocks<E> blocks(s.head_dim);
  std::array<float, kQueries> delta;
  for (std::int64_t r = 0; r < at.rows; ++r) {
    const std::int64_t o = at.query(s, s.ld_o) + r * s.ld_o;
    delta[static_cast<std::size_t>(r)] = dot_row(out + o, dout + o, s.head_dim);
  }
  gather(q + at.query(s, s.ld_q), s.ld_q, at.rows, s.head_dim, blocks.q);
  gather(dout + at.query(s, s.ld_o), s.ld_o, at.rows, s.head_dim, blocks.dout);
  const std::int64_t limit = at.first + at.rows;
  for (std::int64_t key = 0; key < limit; key += kKeys) {
    const std::int64_t columns = std::min(kKeys, limit - key);
    gather(k + at.key(s, s.ld_k, key), s.ld_k, columns, s.head_dim, blocks.k);
    gather(v + at.key(s, s.ld_v, key), s.ld_v, columns, s.head_dim, blocks.v);
    scores(blocks.q, blocks.k, at.rows, columns, s.head_dim, blocks.s);
    scores(blocks.dout, blocks.v, at.rows, columns, s.head_dim, blocks.ds);
    for (std::int64_t r = 0; r < at.rows; ++r) {
      const std::int64_t valid = std::min(columns, at.first + r + 1 - key), row = r * kKeys;
      kernels.backward(blocks.s + row, blocks.ds + row, valid, columns, s.scale, lse[at.row(s) + r],
                       delta[static_cast<std::size_t>(r)], blocks.p + row, blocks.dp + row);
    }
    weighted_transposed(blocks.p, blocks.dout, columns, s.head_dim, at.rows, dv + key * s.head_dim);
    weighted_transposed(blocks.dp, blocks.q, columns, s.head_dim, at.rows, dk + key * s.head_dim);
    weighted(blocks.dp, blocks.k, at.rows, s.head_dim, columns, blocks.result, key > 0);
  }
  for (std::int64_t r = 0; r < at.rows; ++r) {
    round_row(blocks.result + r * s.head_dim, nullptr, dq + at.query(s, s.ld_q) + r * s.ld_q, s.head_dim);
  }
}

/// One key/value head of one batch: its query heads and their panels, ascending.
template <class E, class T>
void backward_head(const AttentionShape& s, std::int64_t batch, std::int64_t kv_head, const T* q, const T* k,
                   const T* v, const T* out, const T* dout, const float* lse, T* dq, T* dk, T* dv, float* scratch) {
  const std::int64_t group = s.heads / s.kv_heads, size = s.length * s.head_dim;
  float* const dk_sum = scratch + (batch * s.kv_heads + kv_head) * 2 * size;
  float* const dv_sum = dk_sum + size;
  std::fill_n(dk_sum, 2 * size, 0.0f);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t i = 0; i < panels(s); ++i) {
      backward_panel<E>(s, panel_of(s, batch, head, i), q, k, v, out, dout, lse, dq, dk_sum, dv_sum);
    }
  }
  const Panel first = panel_of(s, batch, kv_head * group, 0);
  for (std::int64_t t = 0; t < s.length; ++t) {
    round_row(dk_sum + t * s.head_dim, nullptr, dk + first.key(s, s.ld_k, t), s.head_dim);
    round_row(dv_sum + t * s.head_dim, nullptr, dv + first.key(s, s.ld_v, t), s.head_dim);
  }
}

/// fn(E()) with the element type that products of T are made in.
template <class T, class Fn>
void with_operands(const Fn& fn) {
  if constexpr (std::is_same_v<T, float>) {
    fn(float());
  } else if (bf16_products_are_native()) {
    fn(bf16());
  } else {
    fn(float());
  }
}

void check_shape(const AttentionShape& s) {
  TRANSLOAD_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "{} heads, {} key/value heads", s.heads, s.kv_heads);
}

}  // namespace

std::uint64_t attention_scratch_bytes(const AttentionShape& s, Dtype) {
  return static_cast<std::uint64_t>(2 * s.batch * s.kv_heads * s.length * s.head_dim) * sizeof(float);
}

template <class T>
void attention_forward(const AttentionShape& s, const T* q, const T* k, const T* v, T* out, float* lse, std::byte*) {
  check_shape(s);
  with_operands<T>([&](auto operand) {
    parallel_tasks(s.batch * s.heads * panels(s), [&](std::int64_t i) {
      const std::int64_t head = i / panels(s);
      const Panel at = panel_of(s, head / s.heads, head % s.heads, i % panels(s));
      forward_panel<decltype(operand)>(s, at, q, k, v, out, lse);
    });
  });
}

template <class T>
void attention_backward(const AttentionShape& s, const T* q, const T* k, const T* v, const T* out, const T* dout,
                        const float* lse, T* dq, T* dk, T* dv, std::byte* scratch) {
  check_shape(s);
  with_operands<T>([&](auto operand) {
    parallel_tasks(s.batch * s.kv_heads, [&](std::int64_t i) {
      backward_head<decltype(operand)>(s, i / s.kv_heads, i % s.kv_heads, q, k, v, out, dout, lse, dq, dk, dv,
                                       reinterpret_cast<float*>(scratch));
    });
  });
}

template void attention_forward(const AttentionShape&, const float*, const float*, const float*, float*, float*,
                                std::byte*);
template void attention_forward(const AttentionShape&, const bf16*, const bf16*, const bf16*, bf16*, float*,
                                std::byte*);
template void attention_backward(const AttentionShape&, const float*, const float*, const float*, const float*,
                                 const float*, const float*, float*, float*, float*, std::byte*);
template void attention_backward(const AttentionShape&, const bf16*, const bf16*, const bf16*, const bf16*, const bf16*,
                                 const float*, bf16*, bf16*, bf16*, std::byte*);

}  // namespace transload::kernels
