// StepKernels on the CPU: kernels/cpu, called where the stream's tasks run.
#include <cstring>

#include "kernels/cpu/products.h"
#include "train/step_kernels.h"

namespace transload {
namespace {

void widen_run(const bf16* from, float* to, std::uint64_t n) { kernels::widen(from, to, static_cast<std::int64_t>(n)); }
void widen_run(const float* from, float* to, std::uint64_t n) { std::memcpy(to, from, n * sizeof(float)); }

class CpuKernels final : public StepKernels {
 public:
  explicit CpuKernels(Dtype dtype) : StepKernels(dtype), products_(dtype) {}

#define TRANSLOAD_TYPED(T)                                                                                            \
  void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps) override { \
    kernels::rms_norm(x, weight, y, tokens, width, eps);                                                              \
  }                                                                                                                   \
  void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,        \
                         std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch) override {           \
    kernels::rms_norm_backward(x, weight, dy, dx, accumulate, dweight, tokens, width, eps, scratch);                  \
  }                                                                                                                   \
  void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,  \
                  float eps) override {                                                                               \
    kernels::layer_norm(x, weight, bias, y, tokens, width, eps);                                                      \
  }                                                                                                                   \
  void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,      \
                           float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch)      \
      override {                                                                                                      \
    kernels::layer_norm_backward(x, weight, dy, dx, accumulate, dweight, dbias, tokens, width, eps, scratch);         \
  }                                                                                                                   \
  void swiglu(const T* gate, const T* up, T* y, std::int64_t n) override { kernels::swiglu(gate, up, y, n); }         \
  void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n) override {          \
    kernels::swiglu_backward(gate, up, dy, dgate, dup, n);                                                            \
  }                                                                                                                   \
  void gelu(kernels::Gelu kind, const T* x, T* y, std::int64_t n) override { kernels::gelu(kind, x, y, n); }          \
  void gelu_backward(kernels::Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n) override {                   \
    kernels::gelu_backward(kind, x, dy, dx, n);                                                                       \
  }                                                                                                                   \
  void add(const T* a, const T* b, T* y, std::int64_t n) override { kernels::add(a, b, y, n); }                       \
  void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens,                  \
                  std::int64_t width) override {                                                                      \
    kernels::round_rows(acc, bias, residual, y, tokens, width);                                                       \
  }                                                                                                                   \
  void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width,                   \
                  std::byte* scratch) override {                                                                      \
    kernels::column_sum(dy, ld, db, tokens, width, scratch);                                                          \
  }                                                                                                                   \
  void attention_forward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, T* out, float* lse,    \
                         std::byte* scratch) override {                                                               \
    kernels::attention_forward(s, q, k, v, out, lse, scratch);                                                        \
  }                                                                                                                   \
  void attention_backward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, const T* out,         \
                          const T* dout, const float* lse, T* dq, T* dk, T* dv, std::byte* scratch) override {        \
    kernels::attention_backward(s, q, k, v, out, dout, lse, dq, dk, dv, scratch);                                     \
  }                                                                                                                   \
  void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads,                    \
              std::int64_t head_dim, const float* cos, const float* sin, bool inverse) override {                     \
    kernels::rotary(x, ld, tokens, length, heads, head_dim, cos, sin, inverse);                                       \
  }                                                                                                                   \
  void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,      \
                        std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add_to, T* x)  \
      override {                                                                                                      \
    kernels::embedding_gather(ids, tokens, width, view, view_begin, param_begin, count, add_to, x);                   \
  }                                                                                                                   \
  void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,               \
                         std::uint64_t begin, std::uint64_t end, float* out) override {                               \
    kernels::embedding_scatter(ids, tokens, width, dx, begin, end, out);                                              \
  }                                                                                                                   \
  void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,             \
                           std::int64_t width, const std::int32_t* targets, kernels::LossRows rows, float scale,      \
                           T* dlogits) override {                                                                     \
    kernels::loss_panel_backward(logits, ld, tokens, first, width, targets, rows, scale, dlogits);                    \
  }                                                                                                                   \
  void load(const BlockView& view, std::uint64_t begin, std::uint64_t n, const T*, float* to) override {              \
    view.for_each_run(                                                                                                \
        begin, begin + n * sizeof(T), [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {         \
          widen_run(reinterpret_cast<const T*>(data), to + (offset - begin) / sizeof(T), bytes / sizeof(T));          \
        });                                                                                                           \
  }
  TRANSLOAD_TYPED(float)
  TRANSLOAD_TYPED(bf16)
#undef TRANSLOAD_TYPED

  void nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
          std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    products_.nt(a, lda, b, bias, c, ldc, tokens, h, inner, scratch);
  }
  void nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
              std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    products_.nt_f32(a, lda, b, c, ldc, tokens, h, inner, scratch);
  }
  void nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, bool accumulate, std::byte* scratch) override {
    products_.nn(a, lda, b, c, ldc, tokens, h, inner, accumulate, scratch);
  }
  void tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    products_.tn(a, lda, b, ldb, g, tokens, h, inner, scratch);
  }

  void loss_reset(kernels::LossRows rows, std::int64_t tokens) override { kernels::loss_reset(rows, tokens); }
  void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                  const std::int32_t* targets, kernels::LossRows rows) override {
    kernels::loss_panel(logits, ld, tokens, first, width, targets, rows);
  }
  void begin_loss() override { loss_ = 0; }
  void add_loss(kernels::LossRows rows, std::int64_t tokens) override { loss_ += kernels::loss_sum(rows, tokens); }
  double loss() override { return loss_; }

  void copy_out(const BlockView& view, void* to, std::uint64_t begin, std::uint64_t end) override {
    view.copy_out(to, begin, end);
  }
  void copy_in(const BlockView& view, const void* from, std::uint64_t begin, std::uint64_t end) override {
    view.copy_in(from, begin, end);
  }
  void mirror(const void*, std::uint64_t) override {}

  std::uint64_t product_scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t inner) const override {
    return products_.scratch_bytes(tokens, h, inner);
  }
  std::uint64_t attention_scratch_bytes(const kernels::AttentionShape& shape) const override {
    return kernels::attention_scratch_bytes(shape, dtype());
  }
  std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width) const override {
    return kernels::norm_scratch_bytes(tokens, width);
  }

 private:
  kernels::Products products_;
  double loss_ = 0;
};

}  // namespace

std::unique_ptr<StepKernels> make_cpu_kernels(Dtype dtype) { return std::make_unique<CpuKernels>(dtype); }

}  // namespace transload
