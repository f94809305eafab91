#include "optim/gradient_kernels.h"

#include <tbb/parallel_for.h>
#include <tbb/parallel_reduce.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/layers.h"

namespace transload {

namespace {

constexpr std::uint64_t kGrain = 32768;  ///< elements a task

template <class Fn>
void over_grains(std::uint64_t n, Fn fn) {
  tbb::parallel_for(std::uint64_t{0}, (n + kGrain - 1) / kGrain,
                    [&](std::uint64_t t) { fn(t * kGrain, std::min((t + 1) * kGrain, n)); });
}

/// Squares of elements [begin, end) of a block.
template <class T>
void add_squares_of(const BlockView& block, std::uint64_t begin, std::uint64_t end, kernels::ExactSum& sum) {
  block.for_each_run(begin * sizeof(T), end * sizeof(T), [&](std::byte* data, std::uint64_t, std::uint64_t bytes) {
    kernels::add_squares(reinterpret_cast<const T*>(data), static_cast<std::int64_t>(bytes / sizeof(T)), sum);
  });
}

class CpuGradientKernels final : public GradientKernels {
 public:
  void zero(const BlockView& block) override { block.zero(0, block.bytes()); }
  void store_or_add(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values, bool add) override;
  void round_values(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values) override;
  void round_sum(const BlockView& sums, const BlockView& block, std::uint64_t at, std::uint64_t n,
                 const float* values) override;
  void add_squares(const BlockView& block, Dtype dtype, std::uint64_t at, std::uint64_t n) override;
  kernels::ExactSum take_squares() override { return std::exchange(squares_, {}); }

 private:
  kernels::ExactSum squares_;  // written on the compute stream, read behind its end
};

void CpuGradientKernels::store_or_add(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values,
                                      bool add) {
  over_grains(n, [&](std::uint64_t begin, std::uint64_t end) {
    block.for_each_run((at + begin) * 4, (at + end) * 4,
                       [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
                         const float* from = values + (offset / 4 - at);
                         float* to = reinterpret_cast<float*>(data);
                         if (!add) {
                           std::memcpy(to, from, bytes);
                           return;
                         }
                         for (std::uint64_t i = 0; i < bytes / 4; ++i) to[i] += from[i];
                       });
  });
}

void CpuGradientKernels::round_values(const BlockView& block, std::uint64_t at, std::uint64_t n, const float* values) {
  over_grains(n, [&](std::uint64_t begin, std::uint64_t end) {
    block.for_each_run((at + begin) * 2, (at + end) * 2,
                       [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
                         kernels::narrow(values + (offset / 2 - at), reinterpret_cast<bf16*>(data),
                                         static_cast<std::int64_t>(bytes / 2));
                       });
  });
}

void CpuGradientKernels::round_sum(const BlockView& sums, const BlockView& block, std::uint64_t at, std::uint64_t n,
                                   const float* values) {
  over_grains(n, [&](std::uint64_t begin, std::uint64_t end) {
    std::array<float, 1024> sum;
    while (begin < end) {
      const std::uint64_t m = std::min<std::uint64_t>(sum.size(), end - begin);
      sums.copy_out(sum.data(), (at + begin) * 4, (at + begin + m) * 4);
      for (std::uint64_t i = 0; i < m; ++i) sum[i] += values[begin + i];
      std::array<bf16, 1024> rounded;
      kernels::narrow(sum.data(), rounded.data(), static_cast<std::int64_t>(m));
      block.copy_in(rounded.data(), (at + begin) * 2, (at + begin + m) * 2);
      begin += m;
    }
  });
}

void CpuGradientKernels::add_squares(const BlockView& block, Dtype dtype, std::uint64_t at, std::uint64_t n) {
  squares_.merge(tbb::parallel_reduce(
      tbb::blocked_range<std::uint64_t>(0, (n + kGrain - 1) / kGrain), kernels::ExactSum(),
      [&](const tbb::blocked_range<std::uint64_t>& range, kernels::ExactSum sum) {
        const std::uint64_t begin = at + range.begin() * kGrain, end = at + std::min(range.end() * kGrain, n);
        if (dtype == Dtype::bf16)
          add_squares_of<bf16>(block, begin, end, sum);
        else
          add_squares_of<float>(block, begin, end, sum);
        return sum;
      },
      [](kernels::ExactSum a, const kernels::ExactSum& b) {
        a.merge(b);
        return a;
      }));
}

}  // namespace

std::unique_ptr<GradientKernels> make_cpu_gradient_kernels() { return std::make_unique<CpuGradientKernels>(); }

}  // namespace transload
