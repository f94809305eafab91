#include "kernels/cpu/adamw.h"

#include <hwy/cache_control.h>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/float_mode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace transload::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float one_nan(float x) { return std::isnan(x) ? std::bit_cast<float>(0x7FC00000u) : x; }

HWY_INLINE float load_master(const AdamwRun& run, std::int64_t i) {
  return run.weight_f32 ? run.weight_f32[i] : join_master(run.weight[i], run.residue[i]);
}

HWY_INLINE void store_master(const AdamwRun& run, std::int64_t i, float master) {
  if (run.weight_f32) {
    run.weight_f32[i] = one_nan(master);
    return;
  }
  const SplitMaster split = split_master(master);
  run.weight[i] = split.weight;
  run.residue[i] = split.residue;
}

/// The sequence of the header, element by element: tails, and targets without a native fma.
HWY_INLINE void update_scalar(const AdamwRun& run, std::int64_t begin, std::int64_t end, const AdamwCoefficients& c,
                              float gradient_scale) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = (run.gradient ? to_float(run.gradient[i]) : run.gradient_f32[i]) * gradient_scale;
    const float m = std::fma(c.one_minus_beta1, g - run.moment1[i], run.moment1[i]);
    const float v = std::fma(c.one_minus_beta2, g * g, c.beta2 * run.moment2[i]);
    const float p = load_master(run, i) * c.decay;
    const float denominator = std::fma(std::sqrt(v), c.inverse_sqrt_correction2, c.epsilon);
    store_master(run, i, std::fma(-c.step_size, m / denominator, p));
    run.moment1[i] = one_nan(m);
    run.moment2[i] = one_nan(v);
  }
}

#if HWY_NATIVE_FMA
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

HWY_INLINE V one_nan(V x) {
  const D d;
  return hn::IfThenElse(hn::Eq(x, x), x, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7FC00000u)));
}

constexpr std::int64_t kGroup = 32;  // elements of a cache line of a 16-bit plane
constexpr std::int64_t kAhead =
    512;  // elements; without it division and root leave memory idle (0.77 of stream, not 0.93)

/// Fetches the group that lies kAhead further on; beyond the end of a plane a prefetch does nothing.
template <class T>
HWY_INLINE void prefetch(const T* group) {
  for (std::size_t byte = 0; byte < kGroup * sizeof(T); byte += 64)
    hwy::Prefetch(reinterpret_cast<const char*>(group + kAhead) + byte);
}

/// Planes as vectors: the bf16 gradient or the fp32 one …
struct GradientBf16 {
  static HWY_INLINE V load(const AdamwRun& run, std::int64_t i) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(run.gradient) + i);
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
  static HWY_INLINE void prefetch_ahead(const AdamwRun& run, std::int64_t i) { prefetch(run.gradient + i); }
};
struct GradientF32 {
  static HWY_INLINE V load(const AdamwRun& run, std::int64_t i) { return hn::LoadU(D(), run.gradient_f32 + i); }
  static HWY_INLINE void prefetch_ahead(const AdamwRun& run, std::int64_t i) { prefetch(run.gradient_f32 + i); }
};

/// … and the master as weight + residue or as itself.
struct MasterSplit {
  static HWY_INLINE V load(const AdamwRun& run, std::int64_t i) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::int16_t, D> di16;
    const hn::RebindToUnsigned<D> d32;
    const auto weight = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(run.weight) + i);
    const auto residue = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(di16, run.residue + i));
    return hn::BitCast(D(), hn::Add(hn::ShiftLeft<16>(hn::PromoteTo(d32, weight)), hn::BitCast(d32, residue)));
  }
  static HWY_INLINE void store(const AdamwRun& run, std::int64_t i, V master) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::BitCast(d32, one_nan(master));
    const auto weight = hn::ShiftRight<16>(hn::Add(bits, hn::Set(d32, 0x8000u)));
    hn::StoreU(hn::TruncateTo(d16, weight), d16, reinterpret_cast<std::uint16_t*>(run.weight) + i);
    hn::StoreU(hn::TruncateTo(d16, bits), d16, reinterpret_cast<std::uint16_t*>(run.residue) + i);
  }
  static HWY_INLINE void prefetch_ahead(const AdamwRun& run, std::int64_t i) {
    prefetch(run.weight + i);
    prefetch(run.residue + i);
  }
};
struct MasterF32 {
  static HWY_INLINE V load(const AdamwRun& run, std::int64_t i) { return hn::LoadU(D(), run.weight_f32 + i); }
  static HWY_INLINE void store(const AdamwRun& run, std::int64_t i, V master) {
    hn::StoreU(one_nan(master), D(), run.weight_f32 + i);
  }
  static HWY_INLINE void prefetch_ahead(const AdamwRun& run, std::int64_t i) { prefetch(run.weight_f32 + i); }
};

template <class Master, class Gradient>
void update_vectors(const AdamwRun& planes, std::int64_t n, const AdamwCoefficients& c, float gradient_scale) {
  const AdamwRun run = planes;  // no store can change a copy, so the pointers stay in registers
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V scale = hn::Set(d, gradient_scale), one_minus_beta1 = hn::Set(d, c.one_minus_beta1);
  const V beta2 = hn::Set(d, c.beta2), one_minus_beta2 = hn::Set(d, c.one_minus_beta2);
  const V decay = hn::Set(d, c.decay), minus_step_size = hn::Set(d, -c.step_size);
  const V correction = hn::Set(d, c.inverse_sqrt_correction2), epsilon = hn::Set(d, c.epsilon);
  const auto step = [&](std::int64_t i) HWY_ATTR {
    const V g = hn::Mul(Gradient::load(run, i), scale);
    const V old_m = hn::LoadU(d, run.moment1 + i);
    const V m = hn::MulAdd(one_minus_beta1, hn::Sub(g, old_m), old_m);
    const V v = hn::MulAdd(one_minus_beta2, hn::Mul(g, g), hn::Mul(beta2, hn::LoadU(d, run.moment2 + i)));
    const V p = hn::Mul(Master::load(run, i), decay);
    const V denominator = hn::MulAdd(hn::Sqrt(v), correction, epsilon);
    Master::store(run, i, hn::MulAdd(minus_step_size, hn::Div(m, denominator), p));
    hn::StoreU(one_nan(m), d, run.moment1 + i);
    hn::StoreU(one_nan(v), d, run.moment2 + i);
  };
  std::int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    prefetch(run.moment1 + i);
    prefetch(run.moment2 + i);
    Master::prefetch_ahead(run, i);
    Gradient::prefetch_ahead(run, i);
    for (std::int64_t j = 0; j < kGroup; j += lanes) step(i + j);
  }
  for (; i + lanes <= n; i += lanes) step(i);
  update_scalar(run, i, n, c, gradient_scale);
}

void adamw_run(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale) {
  if (run.weight_f32) {
    run.gradient ? update_vectors<MasterF32, GradientBf16>(run, n, c, gradient_scale)
                 : update_vectors<MasterF32, GradientF32>(run, n, c, gradient_scale);
  } else {
    run.gradient ? update_vectors<MasterSplit, GradientBf16>(run, n, c, gradient_scale)
                 : update_vectors<MasterSplit, GradientF32>(run, n, c, gradient_scale);
  }
}
#else
void adamw_run(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale) {
  update_scalar(run, 0, n, c, gradient_scale);
}
#endif

}  // namespace transload::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(adamw_run);
constexpr bool kOneTarget = (HWY_TARGETS & (HWY_TARGETS - 1)) == 0;

void check_run(const AdamwRun& run, std::int64_t n) {
  TRANSLOAD_CHECK(n >= 0, "n = {}", n);
  TRANSLOAD_CHECK((run.weight && run.residue) != (run.weight_f32 != nullptr), "weight {} residue {} weight_f32 {}",
                  run.weight != nullptr, run.residue != nullptr, run.weight_f32 != nullptr);
  TRANSLOAD_CHECK((run.gradient != nullptr) != (run.gradient_f32 != nullptr), "gradient {} gradient_f32 {}",
                  run.gradient != nullptr, run.gradient_f32 != nullptr);
  TRANSLOAD_CHECK(run.moment1 && run.moment2, "moment1 {} moment2 {}", run.moment1 != nullptr, run.moment2 != nullptr);
}

/// By squaring: multiplications only, so the same on every machine (pow of libm is not).
double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

AdamwCoefficients coefficients(const AdamwHyper& h, std::uint64_t step) {
  TRANSLOAD_CHECK(step >= 1, "step = {}", step);
  const double correction1 = 1 - power(h.beta1, step), correction2 = 1 - power(h.beta2, step);
  AdamwCoefficients c;
  c.one_minus_beta1 = static_cast<float>(1 - h.beta1);
  c.beta2 = static_cast<float>(h.beta2);
  c.one_minus_beta2 = static_cast<float>(1 - h.beta2);
  c.decay = static_cast<float>(1 - h.lr * h.weight_decay);
  c.step_size = static_cast<float>(h.lr / correction1);
  c.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2));
  c.epsilon = static_cast<float>(h.epsilon);
  return c;
}

void adamw(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale) {
  if (n == 0) return;
  check_run(run, n);
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(adamw_run)(run, n, c, gradient_scale);
}

std::vector<std::string> adamw_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string target_in_use() { return adamw_targets().front(); }

bool adamw_on_target(const std::string& target, const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c,
                     float gradient_scale) {
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    if (target != hwy::TargetName(bit)) continue;
    if (n == 0) return true;
    check_run(run, n);
    hwy::ChosenTarget chosen;
    chosen.Update(bit);
    const FloatMode mode;
    HWY_DISPATCH_TABLE(adamw_run)[kOneTarget ? 0 : chosen.GetIndex()](run, n, c, gradient_scale);
    return true;
  }
  return false;
}

}  // namespace transload::kernels
#endif
