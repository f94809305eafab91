#include "kernels/cuda/rows.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {

void widen(const bf16* from, float* to, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("widen", Convert<bf16, float>{from, to}, span_of(n, {operand(from), operand(to)}), stream);
}
void narrow(const float* from, bf16* to, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("narrow", Convert<float, bf16>{from, to}, span_of(n, {operand(from), operand(to)}), stream);
}

void store_or_add(float* block, std::int64_t n, const float* values, bool add, cudaStream_t stream) {
  const Span span = span_of(n, {operand(block), operand(values)});
  if (add) {
    launch_elementwise("store_or_add", Add<float, float, float>{block, values, block}, span, stream);
  } else {
    launch_elementwise("store_or_add", Convert<float, float>{values, block}, span, stream);
  }
}
void round_values(bf16* block, std::int64_t n, const float* values, cudaStream_t stream) {
  narrow(values, block, n, stream);
}
void round_sum(const float* sums, bf16* block, std::int64_t n, const float* values, cudaStream_t stream) {
  launch_elementwise("round_sum", Add<float, float, bf16>{sums, values, block},
                     span_of(n, {operand(sums), operand(values), operand(block)}), stream);
}

template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("add", Add<T, T, T>{a, b, y}, span_of(n, {operand(a), operand(b), operand(y)}), stream);
}

template <class T>
void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens, std::int64_t width,
                cudaStream_t stream) {
  const std::int64_t n = tokens * width;
  Span span = span_of(n, {operand(acc), operand(residual), operand(y)});
  const bool rows_on_boundaries = width % kGroup == 0 && span.head == 0 && aligned(bias);
  if (bias != nullptr && !rows_on_boundaries) span = {n, n, 0};
  launch_elementwise("round_rows", RoundRows<T>{acc, bias, residual, y, width}, span, stream);
}

template <class T>
void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width, std::byte* scratch,
                cudaStream_t stream) {
  auto* parts = reinterpret_cast<float*>(scratch);
  const bool on_boundaries = aligned(dy, parts) && ld % kGroup == 0 && width % kGroup == 0;
  launch_column_parts("column_sum", ColumnTerms<T>{dy, ld}, on_boundaries, tokens, width, parts, stream);
  launch_sum_parts(parts, width, blocks_for(tokens, kSumTokens), width, db, stream);
}

template void add(const float*, const float*, float*, std::int64_t, cudaStream_t);
template void add(const bf16*, const bf16*, bf16*, std::int64_t, cudaStream_t);
template void round_rows(const float*, const float*, const float*, float*, std::int64_t, std::int64_t, cudaStream_t);
template void round_rows(const float*, const float*, const bf16*, bf16*, std::int64_t, std::int64_t, cudaStream_t);
template void column_sum(const float*, std::int64_t, float*, std::int64_t, std::int64_t, std::byte*, cudaStream_t);
template void column_sum(const bf16*, std::int64_t, float*, std::int64_t, std::int64_t, std::byte*, cudaStream_t);

}  // namespace transload::kernels::cuda
