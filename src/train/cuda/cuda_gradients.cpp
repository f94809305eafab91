// GradientKernels on a GPU: kernels/cuda over the runs of blocks, and the sum of squares in limbs on the device.
#include <algorithm>
#include <array>

#include "kernels/cuda/exact_limbs.h"
#include "kernels/cuda/kernels.h"
#include "train/cuda/cuda_kernels.h"

namespace transload::cuda {
namespace {

namespace k = kernels::cuda;
using kernels::ExactSum;

constexpr std::uint64_t kSliceElements = 4 << 20;  // whose run sums fit the buffer

/// What comes to the host.
struct Squares {
  std::array<std::uint64_t, ExactSum::kLimbs> limbs;
  std::uint32_t not_finite;
};

class CudaGradients final : public GradientKernels {
 public:
  CudaGradients(std::shared_ptr<CudaContext> context, CudaStream* stream)
      : context_(std::move(context)),
        stream_(stream),
        squares_(*context_, sizeof(Squares), true),
        run_sums_(*context_, k::run_count(kSliceElements) * sizeof(double), false) {}

  void zero(const BlockView& block) override {
    block.for_each_run(0, block.bytes(),
                       [&](std::byte* data, std::uint64_t, std::uint64_t bytes) { zero_async(data, bytes, stream()); });
  }
  void store_or_add(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values, bool add) override {
    for_each_run<float>(block, at, n, [&](float* data, std::uint64_t offset, std::int64_t count) {
      k::store_or_add(data, count, values + offset, add, stream());
    });
  }
  void round_values(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values) override {
    for_each_run<bf16>(block, at, n, [&](bf16* data, std::uint64_t offset, std::int64_t count) {
      k::round_values(data, count, values + offset, stream());
    });
  }
  void round_sum(const BlockView& sums, const BlockView& block, std::uint64_t at, std::uint64_t n,
                 const float* values) override {
    for_each_run<bf16>(block, at, n, [&](bf16* data, std::uint64_t begin, std::int64_t length) {
      for_each_run<float>(sums, at + begin, static_cast<std::uint64_t>(length),
                          [&](const float* sum, std::uint64_t offset, std::int64_t count) {
                            k::round_sum(sum, data + offset, count, values + begin + offset, stream());
                          });
    });
  }
  void add_squares(const BlockView& block, Dtype dtype, std::uint64_t at, std::uint64_t n) override {
    if (fresh_) zero_async(squares_.device(), squares_.bytes(), stream());
    fresh_ = false;
    for (std::uint64_t begin = at; begin < at + n; begin += kSliceElements) {
      const std::uint64_t count = std::min(kSliceElements, at + n - begin);
      if (dtype == Dtype::bf16)
        add_slice<bf16>(block, begin, count);
      else
        add_slice<float>(block, begin, count);
    }
    squares_.to_host(stream());
  }
  ExactSum take_squares() override {
    if (fresh_) return {};
    fresh_ = true;
    const auto* squares = squares_.host<Squares>();
    return {squares->limbs, squares->not_finite != 0};
  }

 private:
  cudaStream_t stream() const { return stream_ == nullptr ? context_->stream() : stream_->get(); }

  /// fn(data, elements before it in the range, count).
  template <class T, class Fn>
  static void for_each_run(const BlockView& block, std::uint64_t at, std::uint64_t n, const Fn& fn) {
    block.for_each_run(
        at * sizeof(T), (at + n) * sizeof(T), [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
          fn(reinterpret_cast<T*>(data), offset / sizeof(T) - at, static_cast<std::int64_t>(bytes / sizeof(T)));
        });
  }
  /// Frames end between runs of 128: each run of bytes begins one.
  template <class T>
  void add_slice(const BlockView& block, std::uint64_t begin, std::uint64_t n) {
    auto* const squares = squares_.device<Squares>();
    auto* const sums = run_sums_.device<double>();
    for_each_run<T>(block, begin, n, [&](const T* data, std::uint64_t, std::int64_t count) {
      k::sum_squares(data, count, sums, &squares->not_finite, stream());
      k::add_to_limbs(sums, k::run_count(count), reinterpret_cast<unsigned long long*>(squares->limbs.data()),
                      stream());
    });
  }

  std::shared_ptr<CudaContext> context_;
  CudaStream* stream_;  // null: the compute stream
  CudaBuffer squares_, run_sums_;
  bool fresh_ = true;  ///< nothing was added since the sum was taken
};

}  // namespace

std::shared_ptr<GradientKernels> make_cuda_gradient_kernels(std::shared_ptr<CudaContext> context, CudaStream* stream) {
  return std::make_shared<CudaGradients>(std::move(context), stream);
}

}  // namespace transload::cuda
