#include "kernels/cpu/embedding.h"

#include "kernels/cpu/parallel.h"

namespace transload::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 15;  // elements of one task

void add_rounded(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}
void add_rounded(const bf16* from, bf16* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = round_to_bf16(to_float(to[i]) + to_float(from[i]));
}

/// sum[0, n) += dx over the tokens, ascending, whose row of the table meets elements [begin, begin + n) of it.
template <class T>
void scatter_range(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx, std::int64_t begin,
                   std::int64_t n, float* sum) {
  std::fill(sum, sum + n, 0.0f);
  const std::int64_t first_row = begin / width, last_row = (begin + n - 1) / width;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (ids[t] < first_row || ids[t] > last_row) continue;
    const std::int64_t row = ids[t] * width;
    const std::int64_t from = std::max(row, begin), to = std::min(row + width, begin + n);
    const T* values = dx + t * width + (from - row);
    for (std::int64_t i = 0; i < to - from; ++i) sum[from - begin + i] += to_float(values[i]);
  }
}

}  // namespace

template <class T>
void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,
                      std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add, T* x) {
  const auto part_begin = static_cast<std::int64_t>(param_begin),
             part_end = part_begin + static_cast<std::int64_t>(count);
  parallel_blocks(tokens, rows_in_block(width, kBlock), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = ids[t] * width;
      const std::int64_t from = std::max(row, part_begin), to = std::min(row + width, part_end);
      if (from >= to) continue;
      T* out = x + t * width + (from - row);
      const std::uint64_t begin = view_begin + static_cast<std::uint64_t>(from - part_begin) * sizeof(T);
      const std::uint64_t end = begin + static_cast<std::uint64_t>(to - from) * sizeof(T);
      view.for_each_run(begin, end, [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
        T* run = out + (offset - begin) / sizeof(T);
        if (add) {
          add_rounded(reinterpret_cast<const T*>(data), run, static_cast<std::int64_t>(bytes / sizeof(T)));
        } else {
          std::memcpy(run, data, bytes);
        }
      });
    }
  });
}

template <class T>
void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,
                       std::uint64_t begin, std::uint64_t end, float* out) {
  const auto first = static_cast<std::int64_t>(begin);
  parallel_blocks(static_cast<std::int64_t>(end - begin), kBlock, [&](std::int64_t from, std::int64_t to) {
    scatter_range(ids, tokens, width, dx, first + from, to - from, out + from);
  });
}

template void embedding_gather(const std::int32_t*, std::int64_t, std::int64_t, const BlockView&, std::uint64_t,
                               std::uint64_t, std::uint64_t, bool, float*);
template void embedding_gather(const std::int32_t*, std::int64_t, std::int64_t, const BlockView&, std::uint64_t,
                               std::uint64_t, std::uint64_t, bool, bf16*);
template void embedding_scatter(const std::int32_t*, std::int64_t, std::int64_t, const float*, std::uint64_t,
                                std::uint64_t, float*);
template void embedding_scatter(const std::int32_t*, std::int64_t, std::int64_t, const bf16*, std::uint64_t,
                                std::uint64_t, float*);

}  // namespace transload::kernels
