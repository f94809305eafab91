#include "kernels/cpu/adamw.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace transload;
using namespace transload::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

/// fma by another road than the library's: the product is exact in double, the sum rounded to odd, then to float.
float fma_by_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, addend = c;
  double sum = product + addend;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (error != 0 && (bits & 1) == 0) {
    bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
    sum = std::bit_cast<double>(bits);
  }
  return static_cast<float>(sum);
}

/// One element's state, and the header's formula on it with a given fma.
struct Element {
  float p, m, v;
};
template <class Fma>
Element reference(Element e, float gradient, const AdamwCoefficients& c, float scale, Fma fma) {
  const float g = gradient * scale;
  const float m = fma(c.one_minus_beta1, g - e.m, e.m);
  const float v = fma(c.one_minus_beta2, g * g, c.beta2 * e.v);
  const float p = e.p * c.decay;
  return {fma(-c.step_size, m / fma(std::sqrt(v), c.inverse_sqrt_correction2, c.epsilon), p), m, v};
}

std::uint32_t stored_bits(float x) { return std::isnan(x) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(x); }

enum class Kind { split_bf16, split_f32, f32_bf16, f32_f32 };  // master, gradient
constexpr Kind kKinds[] = {Kind::split_bf16, Kind::split_f32, Kind::f32_bf16, Kind::f32_f32};

/// The planes of a run, each `shift` elements into its buffer (so that no vector is aligned), with guards around.
struct Planes {
  std::vector<bf16> weight, gradient;
  std::vector<std::int16_t> residue;
  std::vector<float> weight_f32, m, v, gradient_f32;
  Kind kind;
  std::size_t n, shift;

  Planes(Kind k, std::size_t count, std::size_t s) : kind(k), n(count), shift(s) {
    const std::size_t size = count + s + 32;
    weight.assign(size, bf16{0x1234});
    gradient.assign(size, bf16{0x1234});
    residue.assign(size, 0x1234);
    for (auto* plane : {&weight_f32, &m, &v, &gradient_f32}) plane->assign(size, 1.5f);
  }
  bool split() const { return kind == Kind::split_bf16 || kind == Kind::split_f32; }
  bool gradient_is_bf16() const { return kind == Kind::split_bf16 || kind == Kind::f32_bf16; }

  AdamwRun run() {
    AdamwRun r;
    r.weight = split() ? weight.data() + shift : nullptr;
    r.residue = split() ? residue.data() + shift : nullptr;
    r.weight_f32 = split() ? nullptr : weight_f32.data() + shift;
    r.moment1 = m.data() + shift;
    r.moment2 = v.data() + shift;
    r.gradient = gradient_is_bf16() ? gradient.data() + shift : nullptr;
    r.gradient_f32 = gradient_is_bf16() ? nullptr : gradient_f32.data() + shift;
    return r;
  }
  void set(std::size_t i, Element e, float g) {
    const SplitMaster parts = split_master(e.p);
    weight[shift + i] = parts.weight;
    residue[shift + i] = parts.residue;
    weight_f32[shift + i] = e.p;
    m[shift + i] = e.m;
    v[shift + i] = e.v;
    gradient[shift + i] = bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(g) >> 16)};
    gradient_f32[shift + i] = g;
  }
  Element get(std::size_t i) const {
    const float p = split() ? join_master(weight[shift + i], residue[shift + i]) : weight_f32[shift + i];
    return {p, m[shift + i], v[shift + i]};
  }
  float gradient_at(std::size_t i) const {
    return gradient_is_bf16() ? to_float(gradient[shift + i]) : gradient_f32[shift + i];
  }
};

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
bool same_bytes(const Planes& a, const Planes& b) {
  return same_bytes(a.weight, b.weight) && same_bytes(a.residue, b.residue) && same_bytes(a.weight_f32, b.weight_f32) &&
         same_bytes(a.m, b.m) && same_bytes(a.v, b.v) && same_bytes(a.gradient, b.gradient) &&
         same_bytes(a.gradient_f32, b.gradient_f32);
}

/// What the planes must be after the update: guards and gradients as they were.
Planes expected(const Planes& before, const AdamwCoefficients& c, float scale) {
  Planes after = before;
  for (std::size_t i = 0; i < before.n; ++i) {
    const Element e = before.get(i);
    const float g = before.gradient_at(i);
    const Element one = reference(e, g, c, scale, [](float x, float y, float z) { return std::fma(x, y, z); });
    const Element two = reference(e, g, c, scale, fma_by_odd);
    REQUIRE(stored_bits(one.p) == stored_bits(two.p));
    REQUIRE(stored_bits(one.m) == stored_bits(two.m));
    REQUIRE(stored_bits(one.v) == stored_bits(two.v));
    const std::size_t at = before.shift + i;
    if (before.split()) {
      const SplitMaster parts = split_master(one.p);
      after.weight[at] = parts.weight;
      after.residue[at] = parts.residue;
    } else {
      after.weight_f32[at] = std::bit_cast<float>(stored_bits(one.p));
    }
    after.m[at] = std::bit_cast<float>(stored_bits(one.m));
    after.v[at] = std::bit_cast<float>(stored_bits(one.v));
  }
  return after;
}

/// Ordinary training values, or any bit pattern at all, or the edges of the format.
float draw(std::mt19937_64& random, int style) {
  static const float edges[] = {0.0f,       -0.0f,     kDenormal,         -kDenormal,  1.17549435e-38f, 3.4028235e38f,
                                -3.4e38f,   kInfinity, -kInfinity,        1.0f,        -1.0f,           5.877472e-39f,
                                1.8447e19f, 1e-19f,    std::nanf("0x12"), 1.00390625f, -1.00390625f,    3.3895314e38f};
  if (style == 0) return std::normal_distribution<float>(0, 0.02f)(random);
  if (style == 1) return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return edges[random() % std::size(edges)];
}

Planes random_planes(Kind kind, std::size_t n, std::size_t shift, std::mt19937_64& random, int style) {
  Planes planes(kind, n, shift);
  for (std::size_t i = 0; i < n; ++i) {
    const float v = draw(random, style);
    planes.set(i, {draw(random, style), draw(random, style), style == 0 ? v * v : std::abs(v)}, draw(random, style));
  }
  return planes;
}

void check_all_targets(const Planes& before, const AdamwCoefficients& c, float scale) {
  const Planes wanted = expected(before, c, scale);
  const auto n = static_cast<std::int64_t>(before.n);
  for (const std::string& target : adamw_targets()) {
    Planes got = before;
    REQUIRE(adamw_on_target(target, got.run(), n, c, scale));
    INFO(target << " n " << n << " shift " << before.shift << " kind " << static_cast<int>(before.kind));
    REQUIRE(same_bytes(got, wanted));
  }
  Planes got = before;
  adamw(got.run(), n, c, scale);
  REQUIRE(same_bytes(got, wanted));
}

}  // namespace

TEST_CASE("every target gives the scalar reference's bits at every size and alignment") {
  const AdamwCoefficients c = coefficients({3e-4, 0.9, 0.95, 1e-8, 0.1}, 7);
  std::mt19937_64 random(1);
  for (std::size_t n = 0; n <= 260; ++n)
    check_all_targets(random_planes(kKinds[n % 4], n, n / 4 % 17, random, static_cast<int>(n % 3)), c, 0.37f);
  for (const Kind kind : kKinds)
    for (const std::size_t n : {1, 15, 16, 17, 63, 64, 65, 260})
      for (std::size_t shift = 0; shift < 3; ++shift) check_all_targets(random_planes(kind, n, shift, random, 0), c, 1);
}

TEST_CASE("every target gives the reference's bits for many seeds, hyperparameters, denormals and infinities") {
  const AdamwHyper hypers[] = {{3e-4, 0.9, 0.95, 1e-8, 0.1},
                               {1.0, 0.0, 0.0, 0.0, 0.0},
                               {1e-3, 0.9, 0.999, 1e-8, 0},
                               {1e-38, 0.5, 0.5, 1e-38, 1},
                               {10, 0.99, 0.9, 1e-45, 2}};
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    std::mt19937_64 random(seed);
    const AdamwCoefficients c = coefficients(hypers[seed % std::size(hypers)], 1 + seed * seed);
    const float scale = seed % 7 == 0 ? 1.0f : draw(random, 0);
    check_all_targets(random_planes(kKinds[seed % 4], 257, seed % 5, random, static_cast<int>(seed / 4 % 3)), c, scale);
  }
}

TEST_CASE("ties of the weight's rounding go up in the bit pattern and the master comes back exactly") {
  AdamwCoefficients c = coefficients({}, 1);  // lr 0: the master stays
  for (const std::uint32_t bits :
       {0x3F808000u, 0x3F818000u, 0xBF808000u, 0x3F807FFFu, 0x3F808001u, 0x7F7FFFFFu, 0x8000u}) {
    Planes planes(Kind::split_bf16, 40, 1);
    for (std::size_t i = 0; i < 40; ++i) planes.set(i, {std::bit_cast<float>(bits), 0.5f, 0.5f}, 0.25f);
    check_all_targets(planes, c, 1);
    adamw(planes.run(), 40, c, 1);
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK(std::bit_cast<std::uint32_t>(planes.get(i).p) == bits);
      CHECK(planes.weight[1 + i].bits == static_cast<std::uint16_t>((bits + 0x8000u) >> 16));
    }
  }
}

TEST_CASE("a NaN is stored as 0x7FC00000 on every target") {
  const AdamwCoefficients c = coefficients({1e-3, 0.9, 0.95, 1e-8, 0.1}, 3);
  for (const Kind kind : kKinds)
    for (const std::uint32_t nan : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F810000u, 0xFFC00000u})
      for (const std::string& target : adamw_targets()) {
        Planes planes(kind, 35, 0);
        for (std::size_t i = 0; i < 35; ++i) planes.set(i, {1, 0.5f, 0.5f}, std::bit_cast<float>(nan));
        REQUIRE(adamw_on_target(target, planes.run(), 35, c, 1));
        for (std::size_t i = 0; i < 35; ++i) {
          const Element e = planes.get(i);
          for (const float x : {e.p, e.m, e.v}) CHECK(std::bit_cast<std::uint32_t>(x) == 0x7FC00000u);
        }
      }
}

TEST_CASE("cutting a run anywhere changes no bit") {
  const AdamwCoefficients c = coefficients({3e-4, 0.9, 0.95, 1e-8, 0.1}, 2);
  std::mt19937_64 random(5);
  const Planes before = random_planes(Kind::split_bf16, 200, 0, random, 0);
  Planes whole = before;
  adamw(whole.run(), 200, c, 1);
  for (std::int64_t cut = 0; cut <= 200; cut += 7) {
    Planes parts = before;
    AdamwRun run = parts.run();
    adamw(run, cut, c, 1);
    run.weight += cut, run.residue += cut, run.moment1 += cut, run.moment2 += cut, run.gradient += cut;
    adamw(run, 200 - cut, c, 1);
    REQUIRE(same_bytes(parts, whole));
  }
}

TEST_CASE("targets are named, the best is in use, an unknown one is refused") {
  const std::vector<std::string> targets = adamw_targets();
  REQUIRE_FALSE(targets.empty());
  CHECK(target_in_use() == targets.front());
#if defined(__x86_64__) && !defined(__AVX2__)
  CHECK(targets.size() >= 2);
#endif
  Planes planes(Kind::f32_f32, 4, 0);
  const Planes before = planes;
  CHECK_FALSE(adamw_on_target("Z80", planes.run(), 4, coefficients({1}, 1), 1));
  CHECK(same_bytes(planes, before));
}

#if defined(__x86_64__)
TEST_CASE("denormal and rounding modes left behind by others change no bit, and are left as they were") {
  const AdamwCoefficients c = coefficients({3e-4, 0.9, 0.95, 1e-8, 0.1}, 2);
  Planes before(Kind::f32_f32, 50, 0);
  for (std::size_t i = 0; i < 50; ++i) before.set(i, {kDenormal * float(i), 3e-39f, 2e-39f}, 1e-39f);
  const Planes wanted = expected(before, c, 1);
  for (const std::string& target : adamw_targets()) {
    Planes got = before;
    AdamwRun run = got.run();
    const unsigned saved = _mm_getcsr(), flushing = saved | 0x8040u | 0x6000u;  // DAZ, FTZ, toward zero
    _mm_setcsr(flushing);
    adamw_on_target(target, run, 50, c, 1);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    CHECK(after == flushing);
    CHECK(same_bytes(got, wanted));
  }
}
#endif

namespace {

/// AdamW in double, as PyTorch documents it.
struct Double {
  double p, m, v;
  void step(const AdamwHyper& h, double g, int t) {
    p *= 1 - h.lr * h.weight_decay;
    m = h.beta1 * m + (1 - h.beta1) * g;
    v = h.beta2 * v + (1 - h.beta2) * g * g;
    p -= h.lr / (1 - std::pow(h.beta1, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(h.beta2, t)) + h.epsilon);
  }
};

/// Trains 200 elements for 30 steps and returns the worst deviation from the double reference in units of the
/// tolerance. One step rounds p thrice (the decay, the coefficient, the sum): 2^-23·|p|; the update, at most
/// 3·lr here, carries some ten roundings, the moments (of size max |g|) another few: 16·2^-24 relative.
template <class Update>
double worst_deviation(Kind kind, Update update) {
  const AdamwHyper h{1e-2, 0.9, 0.95, 1e-8, 0.1};
  constexpr int kSteps = 30, kCount = 200;
  std::mt19937_64 random(11);
  Planes planes = random_planes(kind, kCount, 0, random, 0);
  std::vector<Double> exact;
  for (std::size_t i = 0; i < kCount; ++i) {
    planes.m[i] = planes.v[i] = 0;
    exact.push_back({planes.get(i).p, 0, 0});
  }
  double largest_g = 0;
  for (int t = 1; t <= kSteps; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const Element e = planes.get(i);
      planes.set(i, e, draw(random, 0) + 0.02f);
      largest_g = std::max(largest_g, std::abs(static_cast<double>(planes.gradient_at(i))));
      exact[i].step(h, planes.gradient_at(i), t);
    }
    update(planes, coefficients(h, static_cast<std::uint64_t>(t)));
  }
  const double unit = std::ldexp(1.0, -24);
  double worst = 0;
  const auto note = [&](double got, double wanted, double tolerance) {
    const double deviation = std::abs(got - wanted) / tolerance;
    worst = std::isnan(deviation) ? kInfinity : std::max(worst, deviation);
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const Element e = planes.get(i);
    note(e.p, exact[i].p, kSteps * unit * (2 * std::abs(exact[i].p) + 16 * 3 * h.lr));
    note(e.m, exact[i].m, 16 * unit * largest_g);
    note(e.v, exact[i].v, 16 * unit * largest_g * largest_g);
  }
  return worst;
}

}  // namespace

TEST_CASE("AdamW follows the float64 reference") {
  for (const Kind kind : kKinds) {
    const double worst = worst_deviation(kind, [](Planes& planes, const AdamwCoefficients& c) {
      adamw(planes.run(), static_cast<std::int64_t>(planes.n), c, 1);
    });
    INFO("kind " << static_cast<int>(kind) << ": " << worst << " tolerances");
    CHECK(worst <= 1);
  }
}

TEST_CASE("an optimizer that does nothing, skips a tail or the decay fails the float64 comparison") {
  CHECK(worst_deviation(Kind::split_bf16, [](Planes&, const AdamwCoefficients&) {}) > 1);
  CHECK(worst_deviation(Kind::split_bf16, [](Planes& planes, const AdamwCoefficients& c) {
          adamw(planes.run(), static_cast<std::int64_t>(planes.n) - 1, c, 1);
        }) > 1);
  CHECK(worst_deviation(Kind::split_bf16, [](Planes& planes, AdamwCoefficients c) {
          c.decay = 1;
          adamw(planes.run(), static_cast<std::int64_t>(planes.n), c, 1);
        }) > 1);
}

TEST_CASE("the first step moves every weight by the learning rate against the gradient's sign") {
  Planes planes(Kind::f32_f32, 33, 0);
  for (std::size_t i = 0; i < 33; ++i) planes.set(i, {0, 0, 0}, i % 2 ? 0.5f : -2.0f);
  adamw(planes.run(), 33, coefficients({1e-3, 0.9, 0.95, 0, 0.1}, 1), 1);
  for (std::size_t i = 0; i < 33; ++i) CHECK(planes.get(i).p == Approx(i % 2 ? -1e-3 : 1e-3).epsilon(1e-6));
}

TEST_CASE("coefficients are the rounded double values") {
  for (const std::uint64_t step : {1ull, 2ull, 3ull, 10ull, 1000ull, 123456ull, 1ull << 40}) {
    const AdamwHyper h{3e-4, 0.9, 0.999, 1e-8, 0.1};
    const AdamwCoefficients c = coefficients(h, step);
    const double t = static_cast<double>(step), unit = std::ldexp(1.0, -24) * 1.0001;
    CHECK(std::abs(c.step_size / (h.lr / (1 - std::pow(h.beta1, t))) - 1) <= unit);
    CHECK(std::abs(c.inverse_sqrt_correction2 * std::sqrt(1 - std::pow(h.beta2, t)) - 1) <= unit);
    CHECK(c.one_minus_beta1 == static_cast<float>(1 - h.beta1));
    CHECK(c.beta2 == static_cast<float>(h.beta2));
    CHECK(c.one_minus_beta2 == static_cast<float>(1 - h.beta2));
    CHECK(c.decay == static_cast<float>(1 - h.lr * h.weight_decay));
    CHECK(c.epsilon == static_cast<float>(h.epsilon));
  }
}
