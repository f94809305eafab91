// The arithmetic of a step on the processor that computes: the CPU's kernels, called by tasks of the compute stream, or
// a GPU's, which those tasks hand to the device. Step code knows this interface alone.
//
// Memory: pointers lie in the compute tier's workspace or blocks. Ids, targets and rotary tables are host memory that
// was announced by mirror(); kernels are given pointers into it. Nothing is owned.
// Threading: all calls from tasks of one stream, except sizes, facts and loss().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/block_view.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/layers.h"

namespace transload {

/// Kernels of one activation type; formulas in kernels/cpu.
template <class T>
class TypedKernels {
 public:
  virtual ~TypedKernels() = default;
  virtual void rms_norm(const T* x, const float* weight, T* y, std::int64_t tokens, std::int64_t width, float eps) = 0;
  virtual void rms_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                                 std::int64_t tokens, std::int64_t width, float eps, std::byte* scratch) = 0;
  virtual void layer_norm(const T* x, const float* weight, const float* bias, T* y, std::int64_t tokens,
                          std::int64_t width, float eps) = 0;
  virtual void layer_norm_backward(const T* x, const float* weight, const T* dy, T* dx, bool accumulate, float* dweight,
                                   float* dbias, std::int64_t tokens, std::int64_t width, float eps,
                                   std::byte* scratch) = 0;
  virtual void swiglu(const T* gate, const T* up, T* y, std::int64_t n) = 0;
  virtual void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n) = 0;
  virtual void gelu(kernels::Gelu kind, const T* x, T* y, std::int64_t n) = 0;
  virtual void gelu_backward(kernels::Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n) = 0;
  virtual void add(const T* a, const T* b, T* y, std::int64_t n) = 0;
  virtual void round_rows(const float* acc, const float* bias, const T* residual, T* y, std::int64_t tokens,
                          std::int64_t width) = 0;
  virtual void column_sum(const T* dy, std::int64_t ld, float* db, std::int64_t tokens, std::int64_t width,
                          std::byte* scratch) = 0;
  virtual void attention_forward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, T* out,
                                 float* lse, std::byte* scratch) = 0;
  virtual void attention_backward(const kernels::AttentionShape& s, const T* q, const T* k, const T* v, const T* out,
                                  const T* dout, const float* lse, T* dq, T* dk, T* dv, std::byte* scratch) = 0;
  virtual void rotary(T* x, std::int64_t ld, std::int64_t tokens, std::int64_t length, std::int64_t heads,
                      std::int64_t head_dim, const float* cos, const float* sin, bool inverse) = 0;
  virtual void embedding_gather(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const BlockView& view,
                                std::uint64_t view_begin, std::uint64_t param_begin, std::uint64_t count, bool add,
                                T* x) = 0;
  virtual void embedding_scatter(const std::int32_t* ids, std::int64_t tokens, std::int64_t width, const T* dx,
                                 std::uint64_t begin, std::uint64_t end, float* out) = 0;
  virtual void loss_panel_backward(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                                   std::int64_t width, const std::int32_t* targets, kernels::LossRows rows, float scale,
                                   T* dlogits) = 0;
  /// to[n] = the view's elements from byte `begin` on, in fp32.
  virtual void load(const BlockView& view, std::uint64_t begin, std::uint64_t n, const T* type, float* to) = 0;
};

class StepKernels : public TypedKernels<float>, public TypedKernels<bf16> {
 public:
  // One overload set of both types.
#define TRANSLOAD_BOTH(name)       \
  using TypedKernels<float>::name; \
  using TypedKernels<bf16>::name;
  TRANSLOAD_BOTH(rms_norm)
  TRANSLOAD_BOTH(rms_norm_backward)
  TRANSLOAD_BOTH(layer_norm)
  TRANSLOAD_BOTH(layer_norm_backward)
  TRANSLOAD_BOTH(swiglu)
  TRANSLOAD_BOTH(swiglu_backward)
  TRANSLOAD_BOTH(gelu)
  TRANSLOAD_BOTH(gelu_backward)
  TRANSLOAD_BOTH(add)
  TRANSLOAD_BOTH(round_rows)
  TRANSLOAD_BOTH(column_sum)
  TRANSLOAD_BOTH(attention_forward)
  TRANSLOAD_BOTH(attention_backward)
  TRANSLOAD_BOTH(rotary)
  TRANSLOAD_BOTH(embedding_gather)
  TRANSLOAD_BOTH(embedding_scatter)
  TRANSLOAD_BOTH(loss_panel_backward)
  TRANSLOAD_BOTH(load)
#undef TRANSLOAD_BOTH

  /// The model's dtype: of the arrays that products take as void*.
  explicit StepKernels(Dtype dtype) : dtype_(dtype) {}
  Dtype dtype() const { return dtype_; }

  // Products: kernels/cpu/products.h.
  virtual void nt(const void* a, std::int64_t lda, const void* b, const float* bias, void* c, std::int64_t ldc,
                  std::int64_t tokens, std::int64_t h, std::int64_t inner, std::byte* scratch) = 0;
  virtual void nt_f32(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
                      std::int64_t h, std::int64_t inner, std::byte* scratch) = 0;
  virtual void nn(const void* a, std::int64_t lda, const void* b, float* c, std::int64_t ldc, std::int64_t tokens,
                  std::int64_t h, std::int64_t inner, bool accumulate, std::byte* scratch) = 0;
  virtual void tn(const void* a, std::int64_t lda, const void* b, std::int64_t ldb, float* g, std::int64_t tokens,
                  std::int64_t h, std::int64_t inner, std::byte* scratch) = 0;

  virtual void loss_reset(kernels::LossRows rows, std::int64_t tokens) = 0;
  virtual void loss_panel(const float* logits, std::int64_t ld, std::int64_t tokens, std::int64_t first,
                          std::int64_t width, const std::int32_t* targets, kernels::LossRows rows) = 0;
  /// Begins a new sum of losses.
  virtual void begin_loss() = 0;
  /// Adds the losses of `tokens` predictions.
  virtual void add_loss(kernels::LossRows rows, std::int64_t tokens) = 0;
  /// The sum since begin_loss(). From the issuing thread, after the stream was synchronized.
  virtual double loss() = 0;

  /// Bytes [begin, end) of a block from and to workspace.
  virtual void copy_out(const BlockView& view, void* to, std::uint64_t begin, std::uint64_t end) = 0;
  virtual void copy_in(const BlockView& view, const void* from, std::uint64_t begin, std::uint64_t end) = 0;

  /// Host memory [host, host + bytes) has new content that kernels will be given pointers into; it stays until the next
  /// call with the same address. The first call of an address may allocate.
  virtual void mirror(const void* host, std::uint64_t bytes) = 0;

  // What kernels take of workspace beside their results, bytes.
  virtual std::uint64_t product_scratch_bytes(std::int64_t tokens, std::int64_t h, std::int64_t inner) const = 0;
  virtual std::uint64_t attention_scratch_bytes(const kernels::AttentionShape& shape) const = 0;
  virtual std::uint64_t norm_scratch_bytes(std::int64_t tokens, std::int64_t width) const = 0;

 private:
  Dtype dtype_;
};

/// The CPU's, for tiers in host memory.
std::unique_ptr<StepKernels> make_cpu_kernels(Dtype dtype);

}  // namespace transload
