#include "kernels/cpu/layers.h"

#include <catch2/catch.hpp>
#include <limits>

#include "kernels/arrays.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr float kEps = 1e-5f;
const float kNan = std::bit_cast<float>(0x7FC00155u);  // a payload must not turn it into a number

template <class T>
struct NormCase {
  std::int64_t tokens, width;
  bool centred;
  std::vector<T> x, dy, before;
  std::vector<float> weight, bias;

  NormCase(std::int64_t t, std::int64_t w, bool c) : tokens(t), width(w), centred(c) {
    x = normal<T>(t * w, 1);
    for (T& v : x) v = rounded(to_float(v) + 0.5f, T());  // a mean to take away
    dy = normal<T>(t * w, 2);
    before = normal<T>(t * w, 3);
    weight = normal<float>(w, 4);
    bias = normal<float>(w, 5);
  }
  std::vector<T> forward() const {
    std::vector<T> y(x.size());
    if (centred) {
      layer_norm(x.data(), weight.data(), bias.data(), y.data(), tokens, width, kEps);
    } else {
      rms_norm(x.data(), weight.data(), y.data(), tokens, width, kEps);
    }
    return y;
  }
  struct Gradients {
    std::vector<T> dx;
    std::vector<float> dweight, dbias;
  };
  Gradients backward(bool accumulate) const {
    Scratch scratch(norm_scratch_bytes(tokens, width));
    Gradients g{before, std::vector<float>(weight.size(), kNan), std::vector<float>(weight.size(), kNan)};
    if (centred) {
      layer_norm_backward(x.data(), weight.data(), dy.data(), g.dx.data(), accumulate, g.dweight.data(), g.dbias.data(),
                          tokens, width, kEps, scratch.data());
    } else {
      rms_norm_backward(x.data(), weight.data(), dy.data(), g.dx.data(), accumulate, g.dweight.data(), tokens, width,
                        kEps, scratch.data());
    }
    return g;
  }
};

struct NormReference {
  std::vector<double> y, dx, dx_magnitude, dweight, dbias, dweight_magnitude, dbias_magnitude;
};
template <class T>
NormReference reference(const NormCase<T>& c) {
  NormReference r;
  const auto width = static_cast<std::size_t>(c.width);
  for (auto* v : {&r.dweight, &r.dbias, &r.dweight_magnitude, &r.dbias_magnitude}) v->assign(width, 0.0);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const T* x = c.x.data() + t * c.width;
    const T* dy = c.dy.data() + t * c.width;
    double mean = 0, square = 0, mean_g = 0, mean_gx = 0, magnitude_g = 0, magnitude_gx = 0;
    if (c.centred) {
      for (std::size_t i = 0; i < width; ++i) mean += to_float(x[i]) / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) square += std::pow(to_float(x[i]) - mean, 2) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(square + kEps);
    for (std::size_t i = 0; i < width; ++i) {
      const double xhat = (to_float(x[i]) - mean) * rstd, d = to_float(dy[i]), g = d * c.weight[i];
      r.y.push_back(xhat * c.weight[i] + (c.centred ? c.bias[i] : 0.0));
      mean_g += c.centred ? g / static_cast<double>(width) : 0.0;
      mean_gx += g * xhat / static_cast<double>(width);
      magnitude_g += c.centred ? std::abs(g) / static_cast<double>(width) : 0.0;
      magnitude_gx += std::abs(g * xhat) / static_cast<double>(width);
      r.dweight[i] += d * xhat;
      r.dweight_magnitude[i] += std::abs(d * xhat) + std::abs(d);
      r.dbias[i] += d;
      r.dbias_magnitude[i] += std::abs(d);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double xhat = (to_float(x[i]) - mean) * rstd, g = to_float(dy[i]) * double{c.weight[i]};
      r.dx.push_back(rstd * (g - mean_g - xhat * mean_gx));
      r.dx_magnitude.push_back(rstd * (std::abs(g) + magnitude_g + (1 + std::abs(xhat)) * magnitude_gx));
    }
  }
  return r;
}

template <class V>
void require_within(const char* what, const std::vector<V>& got, const std::vector<double>& want,
                    const std::vector<double>& magnitude, double factor, double unit) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = factor * magnitude[i] + unit * std::abs(want[i]);
    INFO(what << "[" << i << "]: got " << to_float(got[i]) << ", want " << want[i] << " within " << tolerance);
    if (!(std::abs(to_float(got[i]) - want[i]) <= tolerance)) FAIL();
  }
}

const std::vector<std::pair<std::int64_t, std::int64_t>> kNormShapes = {
    {0, 16}, {1, 1}, {1, 16}, {2, 15}, {3, 17}, {63, 48}, {64, 100}, {65, 33}, {130, 768}};

}  // namespace

TEMPLATE_TEST_CASE("norms agree with a double reference", "", float, bf16) {
  for (const bool centred : {false, true}) {
    for (const auto& [tokens, width] : kNormShapes) {
      if (centred && width == 1) continue;  // a single value less its mean is zero: nothing to compare
      INFO(tokens << " × " << width << (centred ? ", layer norm" : ", RMS norm"));
      const NormCase<TestType> c(tokens, width, centred);
      const NormReference want = reference(c);
      // Sums of `width` terms in lanes, a root and a few products: 16 ulps of fp32 of numbers of order one.
      const std::vector<double> ones(want.y.size(), 4.0);
      require_within("y", c.forward(), want.y, ones, 16 * 0x1p-24, kUnit<TestType>);
      const auto g = c.backward(false);
      require_within("dx", g.dx, want.dx, want.dx_magnitude, 32 * 0x1p-24, kUnit<TestType>);
      require_within("dweight", g.dweight, want.dweight, want.dweight_magnitude, 80 * 0x1p-24, 0);
      if (centred) require_within("dbias", g.dbias, want.dbias, want.dbias_magnitude, 80 * 0x1p-24, 0);
    }
  }
}

TEMPLATE_TEST_CASE("a norm's gradient can be added to what is there", "", float, bf16) {
  for (const bool centred : {false, true}) {
    const NormCase<TestType> c(9, 40, centred);
    NormReference want = reference(c);
    for (std::size_t i = 0; i < want.dx.size(); ++i) {
      want.dx[i] += to_float(c.before[i]);
      want.dx_magnitude[i] += std::abs(to_float(c.before[i]));
    }
    require_within("dx", c.backward(true).dx, want.dx, want.dx_magnitude, 32 * 0x1p-24, kUnit<TestType>);
  }
}

TEMPLATE_TEST_CASE("a row of zeros has a norm", "", float, bf16) {
  NormCase<TestType> c(1, 32, false);
  std::fill(c.x.begin(), c.x.end(), TestType{});
  for (const auto v : c.forward()) REQUIRE(to_float(v) == 0.0f);
  for (const auto v : c.backward(false).dx) REQUIRE(std::isfinite(to_float(v)));
}

TEMPLATE_TEST_CASE("a NaN in one token stays in that token's row, and reaches the parameters' gradients", "", float,
                   bf16) {
  for (const bool centred : {false, true}) {
    NormCase<TestType> c(5, 35, centred);
    c.x[2 * 35 + 34] = rounded(kNan, TestType());
    const auto y = c.forward();
    const auto g = c.backward(false);
    for (std::size_t i = 0; i < y.size(); ++i) {
      REQUIRE(std::isnan(to_float(y[i])) == (i / 35 == 2));
      REQUIRE(std::isnan(to_float(g.dx[i])) == (i / 35 == 2));
    }
    for (const float v : g.dweight) REQUIRE(std::isnan(v));
  }
}

TEMPLATE_TEST_CASE("the bits of norms do not depend on threads", "", float, bf16) {
  for (const bool centred : {false, true}) {
    const NormCase<TestType> c(500, 300, centred);
    require_same_on_any_threads([&] { return c.forward(); });
    require_same_on_any_threads([&] { return c.backward(true).dx; });
    require_same_on_any_threads([&] { return c.backward(true).dweight; });
    if (centred) require_same_on_any_threads([&] { return c.backward(true).dbias; });
  }
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_reference(Gelu kind, double x) {
  if (kind == Gelu::exact) return x * phi(x);
  return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}
double gelu_slope_reference(Gelu kind, double x) {
  if (kind == Gelu::exact) return phi(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
  const double s = sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return s + x * s * (1 - s) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// −12 … 12 in small steps, zero, and what saturates.
template <class T>
std::vector<T> activation_inputs() {
  std::vector<T> x;
  for (int i = -1200; i <= 1200; ++i) x.push_back(rounded(static_cast<float>(i) * 0.01f, T()));
  for (const float v : {0.0f, -0.0f, 1e-20f, -1e-20f, 50.0f, -50.0f, 200.0f, -200.0f, 1e10f, -1e10f, 3e38f, -3e38f}) {
    x.push_back(rounded(v, T()));
  }
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("GELU and its slope agree with a double reference", "", float, bf16) {
  const auto x = activation_inputs<TestType>();
  const auto n = static_cast<std::int64_t>(x.size());
  const std::vector<TestType> ones(x.size(), rounded(1.0f, TestType()));
  for (const Gelu kind : {Gelu::tanh, Gelu::exact}) {
    std::vector<TestType> y(x.size()), dx(x.size());
    gelu(kind, x.data(), y.data(), n);
    gelu_backward(kind, x.data(), ones.data(), dx.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = to_float(x[i]);
      INFO((kind == Gelu::exact ? "exact" : "tanh")
           << " at " << v << ": " << to_float(y[i]) << " slope " << to_float(dx[i]));
      // Relative: the exponent's rounding (the tanh form's grows with x³) and a polynomial of ten terms in fp32.
      const double ulps = (kind == Gelu::exact ? 12 : 12 + 2 * std::min(100.0, std::abs(v * v * v)));
      REQUIRE(close(to_float(y[i]), gelu_reference(kind, v), 1e-37, ulps * 0x1p-24 + kUnit<TestType>));
      const double slope = std::abs(v) > 50 ? (v > 0 ? 1.0 : 0.0) : gelu_slope_reference(kind, v);
      // Two terms that cancel where the slope crosses zero.
      const double terms = std::abs(v) > 12 ? 1.0 : std::abs(slope) + std::abs(v) * std::exp(-v * v / 2);
      REQUIRE(close(to_float(dx[i]), slope, ulps * 0x1p-24 * terms + 1e-37, kUnit<TestType>));
    }
  }
}

TEMPLATE_TEST_CASE("SwiGLU and its gradients agree with a double reference, in place too", "", float, bf16) {
  const auto gate = activation_inputs<TestType>();
  const auto n = static_cast<std::int64_t>(gate.size());
  const auto up = normal<TestType>(n, 1), dy = normal<TestType>(n, 2);
  std::vector<TestType> y(gate.size()), dgate = gate, dup = up;
  swiglu(gate.data(), up.data(), y.data(), n);
  swiglu_backward(dgate.data(), dup.data(), dy.data(), dgate.data(), dup.data(), n);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = to_float(gate[i]), u = to_float(up[i]), d = to_float(dy[i]), s = sigmoid(g);
    INFO("gate " << g << " up " << u << " dy " << d);
    const double relative = 12 * 0x1p-24 + kUnit<TestType>;
    if (std::abs(g * s * u) < 3e38) REQUIRE(close(to_float(y[i]), g * s * u, 1e-36, relative));
    if (std::abs(g * s * d) < 3e38) REQUIRE(close(to_float(dup[i]), g * s * d, 1e-36, relative));
    const double slope = s + g * s * (1 - s), terms = s + std::abs(g * s * (1 - s));
    REQUIRE(close(to_float(dgate[i]), d * u * slope, 12 * 0x1p-24 * std::abs(d * u) * terms + 1e-36, kUnit<TestType>));
  }
}

TEMPLATE_TEST_CASE("activations hand NaN on, in whole vectors and in tails", "", float, bf16) {
  for (const std::int64_t n : {1, 15, 16, 17, 100}) {
    std::vector<TestType> x(static_cast<std::size_t>(n), rounded(1.0f, TestType())), y(x.size());
    x.back() = rounded(kNan, TestType());
    for (const Gelu kind : {Gelu::tanh, Gelu::exact}) {
      gelu(kind, x.data(), y.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::isnan(to_float(y[i])) == (i + 1 == x.size()));
      gelu_backward(kind, x.data(), x.data(), y.data(), n);
      REQUIRE(std::isnan(to_float(y.back())));
    }
    swiglu(x.data(), x.data(), y.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::isnan(to_float(y[i])) == (i + 1 == x.size()));
  }
}

TEMPLATE_TEST_CASE("the bits of element-wise kernels depend neither on threads nor on addresses", "", float, bf16) {
  const std::int64_t n = 70001;
  const auto a = normal<TestType>(n, 1), b = normal<TestType>(n, 2);
  const auto all = [&](std::size_t shift) {
    std::vector<TestType> x(shift), z(shift), y(a.size() + shift), results;
    x.insert(x.end(), a.begin(), a.end());
    z.insert(z.end(), b.begin(), b.end());
    const auto keep = [&] { results.insert(results.end(), y.begin() + static_cast<std::ptrdiff_t>(shift), y.end()); };
    swiglu(x.data() + shift, z.data() + shift, y.data() + shift, n);
    keep();
    for (const Gelu kind : {Gelu::tanh, Gelu::exact}) {
      gelu(kind, x.data() + shift, y.data() + shift, n);
      keep();
      gelu_backward(kind, x.data() + shift, z.data() + shift, y.data() + shift, n);
      keep();
    }
    add(x.data() + shift, z.data() + shift, y.data() + shift, n);
    keep();
    return results;
  };
  require_same_on_any_threads([&] { return all(0); });
  REQUIRE(same_bits(all(0), all(1)));
  REQUIRE(same_bits(all(0), all(13)));
}

TEMPLATE_TEST_CASE("addition and rounding of rows round once", "", float, bf16) {
  for (const auto& [tokens, width] : kNormShapes) {
    const std::int64_t n = tokens * width;
    const auto a = normal<TestType>(n, 1), b = normal<TestType>(n, 2);
    const auto acc = normal<float>(n, 3), bias = normal<float>(width, 4);
    std::vector<TestType> y(a);
    add(y.data(), b.data(), y.data(), n);
    for (std::size_t i = 0; i < y.size(); ++i) {
      REQUIRE(to_float(y[i]) == to_float(rounded(to_float(a[i]) + to_float(b[i]), TestType())));
    }
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        round_rows(acc.data(), with_bias ? bias.data() : nullptr, with_residual ? b.data() : nullptr, y.data(), tokens,
                   width);
        for (std::size_t i = 0; i < y.size(); ++i) {
          float v = acc[i];
          if (with_bias) v += bias[i % static_cast<std::size_t>(width)];
          if (with_residual) v += to_float(b[i]);
          REQUIRE(to_float(y[i]) == to_float(rounded(v, TestType())));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("column sums agree with a double reference on any threads", "", float, bf16) {
  for (const auto& [tokens, width] : kNormShapes) {
    const std::int64_t ld = width + 3;
    const auto dy = normal<TestType>(tokens * ld, 1);
    std::vector<double> want(static_cast<std::size_t>(width)), magnitude(want);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < width; ++i) {
        const double v = to_float(dy[static_cast<std::size_t>(t * ld + i)]);
        want[static_cast<std::size_t>(i)] += v;
        magnitude[static_cast<std::size_t>(i)] += std::abs(v);
      }
    }
    const auto run = [&] {
      Scratch scratch(norm_scratch_bytes(tokens, width));
      std::vector<float> sum(static_cast<std::size_t>(width), kNan);
      column_sum(dy.data(), ld, sum.data(), tokens, width, scratch.data());
      return sum;
    };
    require_within("sum", run(), want, magnitude, 66 * 0x1p-24, 0);
    require_same_on_any_threads(run);
  }
}

TEST_CASE("widening is exact and narrowing rounds to nearest even, for every bf16 and between any two") {
  std::vector<bf16> all(1 << 16);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = {static_cast<std::uint16_t>(i)};
  std::vector<float> wide(all.size());
  widen(all.data(), wide.data(), static_cast<std::int64_t>(all.size()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) == std::uint32_t{all[i].bits} << 16);
  }
  for (const std::uint32_t below : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    std::vector<float> between(wide.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      between[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(wide[i]) | below);
    }
    std::vector<bf16> narrowed(wide.size());
    narrow(between.data(), narrowed.data(), static_cast<std::int64_t>(wide.size()));
    for (std::size_t i = 0; i < wide.size(); ++i) REQUIRE(narrowed[i].bits == round_to_bf16(between[i]).bits);
  }
}
