#include <hwy/cache_control.h>
#include <algorithm>
#include <array>

#include "kernels/cpu/exact_sum.h"
#include "kernels/cpu/float_mode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add_squares.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TRANSLOAD_ADD_SQUARES_ONCE
#define TRANSLOAD_ADD_SQUARES_ONCE
namespace transload::kernels {
constexpr std::int64_t kRun = 128;
constexpr std::size_t kLanes = 8;
constexpr std::int64_t kAhead = 8 * kRun;  // elements fetched ahead of use
}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<double, kLanes>;
using DF = hn::Rebind<float, D>;

HWY_INLINE hn::Vec<DF> load(const float* g) { return hn::LoadU(DF(), g); }
HWY_INLINE hn::Vec<DF> load(const bf16* g) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(g));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

/// Sum of the squares of one whole run. A square of a float is exact in double, so fused or not is the same here.
template <class T>
HWY_INLINE double run_of_squares(const T* g) {
  const D d;
  const std::size_t width = hn::Lanes(d);
  std::array<double, kLanes> lanes;
  for (std::size_t lane = 0; lane < kLanes; lane += width) {
    auto sum = hn::Zero(d);
    for (std::size_t i = lane; i < kRun; i += kLanes) {
      const auto x = hn::PromoteTo(d, load(g + i));
      sum = hn::MulAdd(x, x, sum);
    }
    hn::StoreU(sum, d, lanes.data() + lane);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/// A short last run is filled up with zeros: they change no lane.
template <class T>
HWY_INLINE void add_runs(const T* g, std::int64_t n, ExactSum& sum) {
  std::int64_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    for (std::size_t byte = 0; byte < kRun * sizeof(T); byte += 64)
      hwy::Prefetch(reinterpret_cast<const char*>(g + i + kAhead) + byte);
    sum.add(run_of_squares(g + i));
  }
  if (i == n) return;
  std::array<T, kRun> padded{};
  std::copy(g + i, g + n, padded.begin());
  sum.add(run_of_squares(padded.data()));
}

void add_runs_bf16(const bf16* g, std::int64_t n, ExactSum& sum) { add_runs(g, n, sum); }
void add_runs_f32(const float* g, std::int64_t n, ExactSum& sum) { add_runs(g, n, sum); }

}  // namespace transload::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {
HWY_EXPORT(add_runs_bf16);
HWY_EXPORT(add_runs_f32);

/// Squares of finite floats stay far from overflow in double, so a sum is poisoned exactly when an element was.
template <class AddRuns>
bool add_finite(AddRuns add_runs, ExactSum& sum) {
  ExactSum part;
  {
    const FloatMode mode;
    add_runs(part);
  }
  sum.merge(part);
  return !part.poisoned();
}
}  // namespace

bool add_squares(const bf16* g, std::int64_t n, ExactSum& sum) {
  return add_finite([&](ExactSum& part) { HWY_DYNAMIC_DISPATCH(add_runs_bf16)(g, n, part); }, sum);
}
bool add_squares(const float* g, std::int64_t n, ExactSum& sum) {
  return add_finite([&](ExactSum& part) { HWY_DYNAMIC_DISPATCH(add_runs_f32)(g, n, part); }, sum);
}

}  // namespace transload::kernels
#endif
