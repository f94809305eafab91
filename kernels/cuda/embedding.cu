#include "kernels/cuda/embedding.cuh"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {

template <class T>
void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* table,
                      std::uint64_t param_begin, std::uint64_t count, bool add, T* x, cudaStream_t stream) {
  const auto begin = static_cast<std::int64_t>(param_begin), end = begin + static_cast<std::int64_t>(count);
  const bool whole = width % kGroup == 0 && begin % kGroup == 0 && end % kGroup == 0 && aligned(table, x);
  const auto kernel = whole ? gather_rows<true, T> : gather_rows<false, T>;
  launch("embedding_gather", kernel, blocks_for(tokens, 1), row_threads(width), 0, stream, ids, width, table, begin,
         end, add, x);
}

void embedding_index(const std::int32_t* ids, std::int64_t count, std::int32_t* index_tokens, std::int32_t* index_ids) {
  std::iota(index_tokens, index_tokens + count, 0);
  std::stable_sort(index_tokens, index_tokens + count, [&](std::int32_t a, std::int32_t b) { return ids[a] < ids[b]; });
  for (std::int64_t k = 0; k < count; ++k) index_ids[k] = ids[index_tokens[k]];
}

template <class T>
void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,
                       std::uint64_t begin, std::uint64_t end, float* out, const EmbeddingIndex& index,
                       cudaStream_t stream) {
  const auto n = static_cast<std::int64_t>(end - begin);
  const bool whole = width % kGroup == 0 && begin % kGroup == 0 && aligned(dx, out);
  const Span span = whole ? Span{n, 0, n / kGroup} : Span{n, n, 0};
  const ScatterRows<T> op{ids, index, tokens, width, dx, static_cast<std::int64_t>(begin), out};
  launch_elementwise("embedding_scatter", op, span, stream);
}

template void embedding_gather(const std::int32_t*, std::int64_t, std::int64_t, const float*, std::uint64_t,
                               std::uint64_t, bool, float*, cudaStream_t);
template void embedding_gather(const std::int32_t*, std::int64_t, std::int64_t, const bf16*, std::uint64_t,
                               std::uint64_t, bool, bf16*, cudaStream_t);
template void embedding_scatter(const std::int32_t*, std::int64_t, std::int64_t, const float*, std::uint64_t,
                                std::uint64_t, float*, const EmbeddingIndex&, cudaStream_t);
template void embedding_scatter(const std::int32_t*, std::int64_t, std::int64_t, const bf16*, std::uint64_t,
                                std::uint64_t, float*, const EmbeddingIndex&, cudaStream_t);

}  // namespace transload::kernels::cuda
