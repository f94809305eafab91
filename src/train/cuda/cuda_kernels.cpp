// StepKernels on a GPU: kernels/cuda in the compute stream.
#include "train/cuda/cuda_kernels.h"

#include "kernels/cuda/attention_panels.h"
#include "kernels/cuda/exact_limbs.h"
#include "train/cuda/mirrors.h"

namespace transload::cuda {
namespace {

namespace k = kernels::cuda;
using kernels::AttentionShape;
using kernels::LossRows;

void widen_run(const bf16* from, float* to, std::int64_t n, cudaStream_t stream) { k::widen(from, to, n, stream); }
void widen_run(const float* from, float* to, std::int64_t n, cudaStream_t stream) {
  copy_async(to, from, static_cast<std::uint64_t>(n) * sizeof(float), stream);
}

class CudaKernels final : public StepKernels {
 public:
  CudaKernels(Dtype dtype, std::shared_ptr<CudaContext> context)
      : StepKernels(dtype), context_(std::move(context)), mirrors_(*context_) {}

#define TRANSLOAD_TYPED(T)                                                                                             \
  void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps) override {  \
    k::rms_norm(x, weight, y, tokens, width, eps, stream());                                                           \
  }                                                                                                                    \
  void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,         \
                         std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch) override {            \
    k::rms_norm_backward(x, weight, dy, dx, accumulate, dweight, tokens, width, eps, scratch, stream());               \
  }                                                                                                                    \
  void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens, std::int64_t width,   \
                  float eps) override {                                                                                \
    k::layer_norm(x, weight, bias, y, tokens, width, eps, stream());                                                   \
  }                                                                                                                    \
  void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,       \
                           float* dbias, std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch)       \
      override {                                                                                                       \
    k::layer_norm_backward(x, weight, dy, dx, accumulate, dweight, dbias, tokens, width, eps, scratch, stream());      \
  }                                                                                                                    \
  void swiglu(const T* gate, const T* up, T* y, std::int64_t n) override { k::swiglu(gate, up, y, n, stream()); }      \
  void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n) override {           \
    k::swiglu_backward(gate, up, dy, dgate, dup, n, stream());                                                         \
  }                                                                                                                    \
  void gelu(kernels::Gelu kind, const T* x, T* y, std::int64_t n) override { k::gelu(kind, x, y, n, stream()); }       \
  void gelu_backward(kernels::Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n) override {                    \
    k::gelu_backward(kind, x, dy, dx, n, stream());                                                                    \
  }                                                                                                                    \
  void add(const T* a, const T* b, T* y, std::int64_t n) override { k::add(a, b, y, n, stream()); }                    \
  void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens,                   \
                  std::int64_t width) override {                                                                       \
    k::round_rows(acc, bias, residual, y, tokens, width, stream());                                                    \
  }                                                                                                                    \
  void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width,                    \
                  std::byte* scratch) override {                                                                       \
    k::column_sum(dy, ld, db, tokens, width, scratch, stream());                                                       \
  }                                                                                                                    \
  void attention_forward(const AttentionShape& s, const T* q, const T* keys, const T* v, T* out, float* lse,           \
                         std::byte* scratch) override {                                                                \
    k::attention_forward(context_->products, s, q, keys, v, out, lse, scratch, stream());                              \
  }                                                                                                                    \
  void attention_backward(const AttentionShape& s, const T* q, const T* keys, const T* v, const T* out, const T* dout, \
                          const float* lse, T* dq, T* dk, T* dv, std::byte* scratch) override {                        \
    k::attention_backward(context_->products, s, q, keys, v, out, dout, lse, dq, dk, dv, scratch, stream());           \
  }                                                                                                                    \
  void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads,                     \
              std::int64_t head_dim, const float* cos, const float* sin, bool inverse) override {                      \
    k::rotary(x, ld, tokens, length, heads, head_dim, mirrors_.find(cos), mirrors_.find(sin), inverse, stream());      \
  }                                                                                                                    \
  void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,       \
                        std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add_to, T* x)   \
      override {                                                                                                       \
    gather(ids, tokens, width, view, view_begin, param_begin, count, add_to, x);                                       \
  }                                                                                                                    \
  void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,                \
                         std::uint64_t begin, std::uint64_t end, float* out) override {                                \
    k::embedding_scatter(mirrors_.find(ids), tokens, width, dx, begin, end, out, mirrors_.index(ids, tokens),          \
                         stream());                                                                                    \
  }                                                                                                                    \
  void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,              \
                           std::int64_t width, const std::int32_t* targets, LossRows rows, float scale, T* dlogits)    \
      override {                                                                                                       \
    k::loss_panel_backward(logits, ld, tokens, first, width, mirrors_.find(targets), rows, scale, dlogits, stream());  \
  }                                                                                                                    \
  void load(const BlockView& view, std::uint64_t begin, std::uint64_t n, const T*, float* to) override {               \
    view.for_each_run(begin, begin + n * sizeof(T),                                                                    \
                      [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {                          \
                        widen_run(reinterpret_cast<const T*>(data), to + (offset - begin) / sizeof(T),                 \
                                  static_cast<std::int64_t>(bytes / sizeof(T)), stream());                             \
                      });                                                                                              \
  }
  TRANSLOAD_TYPED(float)
  TRANSLOAD_TYPED(bf16)
#undef TRANSLOAD_TYPED

  void nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
          std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    context_->products.nt(dtype(), a, lda, b, bias, c, ldc, tokens, h, inner, scratch, stream());
  }
  void nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
              std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    context_->products.nt_f32(dtype(), a, lda, b, c, ldc, tokens, h, inner, scratch, stream());
  }
  void nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, bool accumulate, std::byte* scratch) override {
    context_->products.nn(dtype(), a, lda, b, c, ldc, tokens, h, inner, accumulate, scratch, stream());
  }
  void tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t tokens,
          std::int64_t h, std::int64_t inner, std::byte* scratch) override {
    context_->products.tn(dtype(), a, lda, b, ldb, g, tokens, h, inner, scratch, stream());
  }

  void loss_reset(LossRows rows, std::int64_t tokens) override { k::loss_reset(rows, tokens, stream()); }
  void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first, std::int64_t width,
                  const std::int32_t* targets, LossRows rows) override {
    k::loss_panel(logits, ld, tokens, first, width, mirrors_.find(targets), rows, stream());
  }
  void begin_loss() override {
    if (!losses_.taken()) losses_ = CudaBuffer(*context_, sizeof(Losses), true);
    zero_async(losses_.device(), losses_.bytes(), stream());
    losses_.to_host(stream());
  }
  void add_loss(LossRows rows, std::int64_t tokens) override {
    auto* const losses = losses_.device<Losses>();
    k::loss_sum(rows, tokens, &losses->last, stream());
    k::add_in_order(&losses->last, &losses->sum, stream());
    losses_.to_host(stream());
  }
  double loss() override { return losses_.host<Losses>()->sum; }

  void copy_out(const BlockView& view, void* to, std::uint64_t begin, std::uint64_t end) override {
    view.for_each_run(begin, end, [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
      copy_async(static_cast<std::byte*>(to) + (offset - begin), data, bytes, stream());
    });
  }
  void copy_in(const BlockView& view, const void* from, std::uint64_t begin, std::uint64_t end) override {
    view.for_each_run(begin, end, [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
      copy_async(data, static_cast<const std::byte*>(from) + (offset - begin), bytes, stream());
    });
  }
  void mirror(const void* host, std::uint64_t bytes) override { mirrors_.update(host, bytes); }

  std::uint64_t product_scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t) const override {
    return k::product_scratch_bytes(tokens, h);
  }
  std::uint64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return k::attention_scratch_bytes(shape, dtype());
  }
  std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width) const override {
    return k::norm_scratch_bytes(tokens, width);
  }

 private:
  struct Losses {
    double sum, last;
  };
  cudaStream_t stream() const { return context_->stream(); }

  template <class T>
  void gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,
              std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add_to, T* x) {
    const std::int32_t* const on_device = mirrors_.find(ids);
    view.for_each_run(view_begin, view_begin + count * sizeof(T),
                      [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
                        k::embedding_gather(on_device, tokens, width, reinterpret_cast<const T*>(data),
                                            param_begin + (offset - view_begin) / sizeof(T), bytes / sizeof(T), add_to,
                                            x, stream());
                      });
  }

  std::shared_ptr<CudaContext> context_;
  Mirrors mirrors_;
  CudaBuffer losses_;
};

}  // namespace

std::unique_ptr<StepKernels> make_cuda_kernels(Dtype dtype, std::shared_ptr<CudaContext> context) {
  return std::make_unique<CudaKernels>(dtype, std::move(context));
}

}  // namespace transload::cuda
