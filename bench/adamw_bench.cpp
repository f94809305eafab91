// AdamW over memory against the in-place stream limit, interleaved: in each round both run, the ratio is taken within
// the round, and the median of the ratios counts (states of the machine change between rounds, not within one).
//   bench_adamw [parameters, default 200e6] [threads, default 2] [rounds, default 15]
#include <sys/mman.h>

#include <fmt/format.h>
#include <hwy/cache_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/exact_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/adamw_bench.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace transload::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The limit: three arrays read and written in place, one multiplication each; also with software prefetch, which helps
/// where one thread cannot fill the memory's queues alone.
template <bool kPrefetch>
HWY_INLINE void stream_loop(float* a, float* b, float* c, std::int64_t n, float factor) {
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i + lanes <= n; i += lanes) {
    if constexpr (kPrefetch)
      for (const float* p : {a, b, c}) hwy::Prefetch(p + i + 512);
    hn::StoreU(hn::Mul(hn::LoadU(d, a + i), f), d, a + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, b + i), f), d, b + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, c + i), f), d, c + i);
  }
}
void stream(float* a, float* b, float* c, std::int64_t n, float factor) { stream_loop<false>(a, b, c, n, factor); }
void stream_ahead(float* a, float* b, float* c, std::int64_t n, float factor) { stream_loop<true>(a, b, c, n, factor); }

}  // namespace transload::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::bench {
namespace {

HWY_EXPORT(stream);
HWY_EXPORT(stream_ahead);
using kernels::AdamwCoefficients, kernels::AdamwRun;
constexpr std::int64_t kPiece = 256 * 1024;  // elements a task
constexpr double kAdamwBytes = 26, kStreamBytes = 24, kSquaresBytes = 2;

/// n elements in huge pages, touched.
template <class T>
T* plane(std::int64_t n, T value) {
  const auto bytes = (static_cast<std::size_t>(n) * sizeof(T) + (2u << 20) - 1) >> 21 << 21;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TRANSLOAD_CHECK(at != MAP_FAILED, "{} bytes", bytes);
  madvise(at, bytes, MADV_HUGEPAGE);
  std::fill_n(static_cast<T*>(at), n, value);
  return static_cast<T*>(at);
}

template <class Body>
double seconds(tbb::task_arena& arena, std::int64_t n, Body body) {
  const auto start = std::chrono::steady_clock::now();
  arena.execute([&] {
    tbb::parallel_for(std::int64_t{0}, (n + kPiece - 1) / kPiece, [&](std::int64_t piece) {
      const std::int64_t begin = piece * kPiece;
      body(begin, std::min(kPiece, n - begin));
    });
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

struct Rates {  ///< one entry a round, GB/s of the bytes that must move
  std::vector<double> adamw, stream, stream_ahead, squares, ratio, ratio_ahead;
};

Rates measure(std::int64_t n, int threads, int rounds) {
  AdamwRun run;
  run.weight = plane<bf16>(n, {0x3C23});
  run.residue = plane<std::int16_t>(n, 77);
  run.moment1 = plane<float>(n, 1e-4f);
  run.moment2 = plane<float>(n, 1e-6f);
  run.gradient = plane<bf16>(n, {0x3A83});
  float *a = plane<float>(n, 1), *b = plane<float>(n, 2), *c = plane<float>(n, 3);

  tbb::task_arena arena(threads);
  std::vector<kernels::ExactSum> sums(static_cast<std::size_t>(threads));
  Rates rates;
  const double count = static_cast<double>(n) * 1e-9;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const AdamwCoefficients k =
        kernels::coefficients({1e-4, 0.9, 0.95, 1e-8, 0.1}, static_cast<std::uint64_t>(round + 2));
    const double stream_s = seconds(arena, n, [&](std::int64_t begin, std::int64_t m) {
      HWY_DYNAMIC_DISPATCH(stream)(a + begin, b + begin, c + begin, m, 1.0f);
    });
    const double adamw_s = seconds(arena, n, [&](std::int64_t begin, std::int64_t m) {
      AdamwRun piece = run;
      piece.weight += begin, piece.residue += begin, piece.moment1 += begin, piece.moment2 += begin;
      piece.gradient += begin;
      kernels::adamw(piece, m, k, 1.0f);
    });
    const double ahead_s = seconds(arena, n, [&](std::int64_t begin, std::int64_t m) {
      HWY_DYNAMIC_DISPATCH(stream_ahead)(a + begin, b + begin, c + begin, m, 1.0f);
    });
    const double squares_s = seconds(arena, n, [&](std::int64_t begin, std::int64_t m) {
      kernels::add_squares(run.gradient + begin, m,
                           sums[static_cast<std::size_t>(tbb::this_task_arena::current_thread_index())]);
    });
    if (round < 0) continue;
    rates.stream.push_back(kStreamBytes * count / stream_s);
    rates.stream_ahead.push_back(kStreamBytes * count / ahead_s);
    rates.adamw.push_back(kAdamwBytes * count / adamw_s);
    rates.squares.push_back(kSquaresBytes * count / squares_s);
    rates.ratio.push_back(rates.adamw.back() / rates.stream.back());
    rates.ratio_ahead.push_back(rates.adamw.back() / rates.stream_ahead.back());
  }
  return rates;
}

int run(int argc, char** argv) {
  const auto n = static_cast<std::int64_t>(argc > 1 ? std::atof(argv[1]) : 200e6);
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2, rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  if (n < 1 || threads < 1 || rounds < 1) {
    fmt::print(stderr, "usage: bench_adamw [parameters] [threads] [rounds]\n");
    return 2;
  }
  fmt::print("AdamW ({}), bf16 gradient, weight + residue, fp32 moments: {} M parameters, {} threads, {} rounds\n",
             kernels::target_in_use(), n / 1000000, threads, rounds);
  const Rates rates = measure(n, threads, rounds);
  const auto [least, most] = std::minmax_element(rates.ratio.begin(), rates.ratio.end());
  fmt::print("stream in place   {:6.2f} GB/s   (limit: three arrays read and written, 24 bytes an element)\n",
             median(rates.stream));
  fmt::print("adamw             {:6.2f} GB/s   (26 bytes a parameter), {:.0f} M parameters/s\n", median(rates.adamw),
             median(rates.adamw) / kAdamwBytes * 1000);
  fmt::print("adamw / stream    {:6.3f}        (median of {} rounds; {:.3f} to {:.3f}; goal 0.90)\n",
             median(rates.ratio), rates.ratio.size(), *least, *most);
  fmt::print("stream, prefetched{:6.2f} GB/s   (the same with software prefetch; adamw / it {:.3f})\n",
             median(rates.stream_ahead), median(rates.ratio_ahead));
  fmt::print("squares of bf16   {:6.2f} GB/s   (gradient norm, read only)\n", median(rates.squares));
  return 0;
}

}  // namespace
}  // namespace transload::bench

int main(int argc, char** argv) { return transload::bench::run(argc, argv); }
#endif
