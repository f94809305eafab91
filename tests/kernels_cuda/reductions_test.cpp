// Norms, softmax and loss: against double references within stated tolerances; what has no sum, the CPU's bits.
#include <limits>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/layers.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;
constexpr float kEps = 1e-5f;

/// |got − want| ≤ tolerance, which NaN never is.
template <class T>
void require_within(const char* what, Array<T>& got, const std::vector<double>& want,
                    const std::vector<double>& tolerance) {
  REQUIRE(got.size() == static_cast<std::int64_t>(want.size()));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double v = to_float(got[static_cast<std::int64_t>(i)]);
    INFO(what << "[" << i << "]: got " << v << ", want " << want[i] << " within " << tolerance[i]);
    if (!(std::abs(v - want[i]) <= tolerance[i])) FAIL();
  }
  INFO(what);
  REQUIRE(got.guards_are_whole());
}

template <class T>
struct NormReference {
  std::vector<double> y, y_tolerance, dx, dx_tolerance, dweight, dweight_tolerance, dbias, dbias_tolerance;
};

/// A norm in double. Tolerances: 32 ulps of fp32 of what is added up, and half an ulp of T.
template <class T>
NormReference<T> reference(bool centred, std::int64_t tokens, std::int64_t width, Array<T>& x, Array<float>& weight,
                           Array<float>& bias, Array<T>& dy, Array<T>& before, bool accumulate) {
  NormReference<T> r;
  const double n = static_cast<double>(width), ulps = 32 * 0x1p-24;
  for (auto* v : {&r.dweight, &r.dweight_tolerance, &r.dbias, &r.dbias_tolerance})
    v->resize(static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < tokens; ++t) {
    double mean = 0, square = 0, mean_g = 0, mean_gx = 0, size_g = 0, size_gx = 0;
    const auto at = [&](Array<T>& a, std::int64_t i) { return static_cast<double>(to_float(a[t * width + i])); };
    for (std::int64_t i = 0; centred && i < width; ++i) mean += at(x, i) / n;
    for (std::int64_t i = 0; i < width; ++i) square += (at(x, i) - mean) * (at(x, i) - mean) / n;
    const double rstd = 1 / std::sqrt(square + kEps);
    for (std::int64_t i = 0; i < width; ++i) {
      const double xhat = (at(x, i) - mean) * rstd, g = at(dy, i) * weight[i];
      r.y.push_back(xhat * weight[i] + (centred ? bias[i] : 0.0));
      r.y_tolerance.push_back(ulps * (4 + std::abs(r.y.back())) + kUnit<T> * std::abs(r.y.back()));
      mean_g += centred ? g / n : 0;
      mean_gx += g * xhat / n;
      size_g += centred ? std::abs(g) / n : 0;
      size_gx += std::abs(g * xhat) / n;
      const auto c = static_cast<std::size_t>(i);
      r.dweight[c] += at(dy, i) * xhat;
      r.dweight_tolerance[c] += 80 * 0x1p-24 * (std::abs(at(dy, i) * xhat) + std::abs(at(dy, i)));
      r.dbias[c] += at(dy, i);
      r.dbias_tolerance[c] += 80 * 0x1p-24 * std::abs(at(dy, i));
    }
    for (std::int64_t i = 0; i < width; ++i) {
      const double xhat = (at(x, i) - mean) * rstd, g = at(dy, i) * weight[i];
      const double old = accumulate ? at(before, i) : 0.0;
      r.dx.push_back(old + rstd * (g - mean_g - xhat * mean_gx));
      const double size = std::abs(old) + rstd * (std::abs(g) + size_g + (1 + std::abs(xhat)) * size_gx);
      r.dx_tolerance.push_back(ulps * size + kUnit<T> * std::abs(r.dx.back()));
    }
  }
  return r;
}

template <class T>
void test_norm(bool centred, std::int64_t tokens, std::int64_t width, std::int64_t shift, bool accumulate) {
  INFO(tokens << " × " << width << ", shift " << shift << (centred ? ", layer norm" : ", RMS norm"));
  Array<T> x(tokens * width, shift), dy(tokens * width, shift), y(tokens * width, shift), dx(tokens * width, shift),
      before(tokens * width, 0);
  Array<float> weight(width, shift), bias(width, shift), dweight(width, shift), dbias(width, shift);
  x.from(normal<T>(tokens * width, 1));
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] = rounded(to_float(x[i]) + 0.5f, T());
  dy.from(normal<T>(tokens * width, 2));
  dx.from(normal<T>(tokens * width, 3));
  before.from(dx.values());
  weight.from(normal<float>(width, 4));
  bias.from(normal<float>(width, 5));
  const auto want = reference(centred, tokens, width, x, weight, bias, dy, before, accumulate);
  auto scratch = scratch_of(cuda::norm_scratch_bytes(tokens, width));
  if (centred) {
    cuda::layer_norm(x.data(), weight.data(), bias.data(), y.data(), tokens, width, kEps, kStream);
    cuda::layer_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), accumulate, dweight.data(), dbias.data(),
                              tokens, width, kEps, scratch.data(), kStream);
    require_within("dbias", dbias, want.dbias, want.dbias_tolerance);
  } else {
    cuda::rms_norm(x.data(), weight.data(), y.data(), tokens, width, kEps, kStream);
    cuda::rms_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), accumulate, dweight.data(), tokens, width,
                            kEps, scratch.data(), kStream);
  }
  require_within("y", y, want.y, want.y_tolerance);
  require_within("dx", dx, want.dx, want.dx_tolerance);
  require_within("dweight", dweight, want.dweight, want.dweight_tolerance);
}

}  // namespace

TEMPLATE_TEST_CASE("norms agree with a double reference", "", float, bf16) {
  for (const bool centred : {false, true}) {
    for (const auto& [tokens, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 16},
                                                                                          {1, 1},
                                                                                          {2, 7},
                                                                                          {2, 8},
                                                                                          {3, 9},
                                                                                          {63, 40},
                                                                                          {64, 255},
                                                                                          {65, 256},
                                                                                          {3, 257},
                                                                                          {2, 264},
                                                                                          {2, 2048},
                                                                                          {1, 2051},
                                                                                          {1, 4104}}) {
      if (centred && width == 1) continue;  // a single value less its mean is zero: nothing to compare
      for (const std::int64_t shift : {0, 1})
        test_norm<TestType>(centred, tokens, width, shift, (width + shift) % 2 == 0);
    }
  }
}

TEMPLATE_TEST_CASE("the bits of reductions do not depend on where arrays start", "", float, bf16) {
  const std::int64_t tokens = 3, width = 2080;
  const auto at = [&](std::int64_t shift) {
    Array<TestType> x(tokens * width, shift), dy(tokens * width, shift), y(tokens * width, shift),
        dx(tokens * width, shift);
    Array<float> weight(width, shift), bias(width, shift), dweight(width, shift), dbias(width, shift), lse(tokens, 0);
    x.from(normal<TestType>(x.size(), 1));
    dy.from(normal<TestType>(x.size(), 2));
    weight.from(normal<float>(width, 3));
    bias.from(normal<float>(width, 4));
    Array<float> scores(tokens * width, shift), delta(tokens, 0);
    scores.from(normal<float>(tokens * width, 5));
    auto scratch = scratch_of(cuda::norm_scratch_bytes(tokens, width));
    std::vector<float> all;
    const auto keep = [&](auto& a) {
      for (std::int64_t i = 0; i < a.size(); ++i) all.push_back(to_float(a[i]));
    };
    cuda::layer_norm(x.data(), weight.data(), bias.data(), y.data(), tokens, width, kEps, kStream);
    keep(y);
    cuda::layer_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), false, dweight.data(), dbias.data(),
                              tokens, width, kEps, scratch.data(), kStream);
    keep(dx), keep(dweight), keep(dbias);
    cuda::ScorePanel panel{
        .heads = 1, .queries = tokens, .first_query = 2000, .length = width, .ld = width, .lse_ld = 0, .scale = 0.5f};
    Array<float> lse_rows(2100, 0);
    cuda::causal_softmax(panel, scores.data(), y.data(), lse_rows.data(), kStream);
    keep(y);
    all.insert(all.end(), lse_rows.data() + 2000, lse_rows.data() + 2000 + tokens);
    cuda::attention_delta(x.data(), dy.data(), width, 1, tokens, 1, width, delta.data(), kStream);
    keep(delta);
    return all;
  };
  const auto first = at(0);
  REQUIRE(same_bits(first, at(1)));
  REQUIRE(same_bits(first, at(5)));
}

TEMPLATE_TEST_CASE("a NaN stays in its token's row, and reaches the parameters' gradients", "", float, bf16) {
  const std::int64_t tokens = 5, width = 300;
  Array<TestType> x(tokens * width, 0), y(tokens * width, 0), dx(tokens * width, 0);
  Array<float> weight(width, 0), dweight(width, 0);
  x.from(normal<TestType>(x.size(), 1));
  weight.from(normal<float>(width, 2));
  set_value(std::nanf("1"), x[2 * width + 299]);
  auto scratch = scratch_of(cuda::norm_scratch_bytes(tokens, width));
  cuda::rms_norm(x.data(), weight.data(), y.data(), tokens, width, kEps, kStream);
  cuda::rms_norm_backward(x.data(), weight.data(), x.data(), dx.data(), false, dweight.data(), tokens, width, kEps,
                          scratch.data(), kStream);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    REQUIRE(std::isnan(to_float(y[i])) == (i / width == 2));
    REQUIRE(std::isnan(to_float(dx[i])) == (i / width == 2));
  }
  for (std::int64_t i = 0; i < width; ++i) REQUIRE(std::isnan(dweight[i]));
}

namespace {

struct SoftmaxCase {
  std::int64_t heads, queries, first, length, ld;
};
const std::vector<SoftmaxCase> kSoftmax = {{0, 4, 0, 8, 8},       {1, 1, 0, 1, 1},         {3, 5, 0, 5, 8},
                                           {2, 4, 4, 8, 8},       {2, 3, 14, 17, 19},      {2, 3, 254, 257, 264},
                                           {1, 2, 300, 700, 704}, {1, 2, 2047, 2050, 2056}};

}  // namespace

TEMPLATE_TEST_CASE("causal softmax agrees with a double reference, its gradient with the CPU", "", float, bf16) {
  for (const auto& c : kSoftmax) {
    INFO(c.heads << " heads, queries " << c.first << " + " << c.queries << ", " << c.length << " keys");
    const std::int64_t rows = c.heads * c.queries, total = c.first + c.queries;
    const cuda::ScorePanel panel{c.heads, c.queries, c.first, c.length, c.ld, total, 0.25f};
    Array<float> scores(rows * c.ld, 0), dp(rows * c.ld, 0), lse(c.heads * total, 0), delta(c.heads * total, 0);
    Array<TestType> p(rows * c.ld, 0), ds(rows * c.ld, 0);
    scores.from(normal<float>(rows * c.ld, 1, 8.0f));
    dp.from(normal<float>(rows * c.ld, 2));
    delta.from(normal<float>(c.heads * total, 3));
    cuda::causal_softmax(panel, scores.data(), p.data(), lse.data(), kStream);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t query = c.first + r % c.queries, seen = std::min(query + 1, c.length);
      double sum = 0, max = -HUGE_VAL;
      for (std::int64_t i = 0; i < seen; ++i) max = std::max(max, 0.25 * scores[r * c.ld + i]);
      for (std::int64_t i = 0; i < seen; ++i) sum += std::exp(0.25 * scores[r * c.ld + i] - max);
      const double want_lse = max + std::log(sum);
      REQUIRE(close(lse[r / c.queries * total + query], want_lse, 8 * 0x1p-24, 4 * 0x1p-24));
      for (std::int64_t i = 0; i < c.length; ++i) {
        const double want = i < seen ? std::exp(0.25 * scores[r * c.ld + i] - want_lse) : 0;
        const double got = to_float(p[r * c.ld + i]);
        INFO("row " << r << ", key " << i << ": got " << got << ", want " << want);
        // The exponent is rounded where it is up to 40 large, the sum has up to 2048 terms in a tree.
        REQUIRE(close(got, want, 1e-37, 64 * 0x1p-24 + kUnit<TestType>));
        if (i >= seen) REQUIRE(got == 0);
      }
    }
    if (!target_in_use().starts_with("AVX")) continue;
    cuda::causal_softmax_backward(panel, scores.data(), dp.data(), lse.data(), delta.data(), p.data(), ds.data(),
                                  kStream);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t query = c.first + r % c.queries, at = r / c.queries * total + query;
      std::vector<float> s(static_cast<std::size_t>(c.length + 32)), d(s);
      std::vector<TestType> want_p(s.size()), want_ds(s.size());
      std::copy_n(scores.data() + r * c.ld, c.length, s.begin());
      std::copy_n(dp.data() + r * c.ld, c.length, d.begin());
      attention_row_kernels<TestType, TestType>().backward(s.data(), d.data(), std::min(query + 1, c.length), c.length,
                                                           0.25f, lse[at], delta[at], want_p.data(), want_ds.data());
      require_same("p", p.data() + r * c.ld, want_p.data(), c.length);
      require_same("ds", ds.data() + r * c.ld, want_ds.data(), c.length);
    }
    REQUIRE(p.guards_are_whole());
    REQUIRE(ds.guards_are_whole());
  }
}

TEST_CASE("a NaN or an infinite score makes its row NaN, where the row sees it") {
  for (const float bad : {std::nanf("1"), HUGE_VALF}) {
    const cuda::ScorePanel panel{1, 4, 0, 4, 4, 4, 1.0f};
    Array<float> scores(16, 0), p(16, 0), lse(4, 0);
    scores.from(normal<float>(16, 1));
    for (std::int64_t r = 0; r < 4; ++r) scores[r * 4 + 2] = bad;
    cuda::causal_softmax(panel, scores.data(), p.data(), lse.data(), kStream);
    for (std::int64_t r = 0; r < 4; ++r) {
      REQUIRE(std::isnan(lse[r]) == (r >= 2));
      for (std::int64_t i = 0; i <= r; ++i) REQUIRE(std::isnan(p[r * 4 + i]) == (r >= 2));
    }
  }
}

TEMPLATE_TEST_CASE("row dots agree with a double reference", "", float, bf16) {
  for (const std::int64_t head_dim : {1, 8, 64, 100, 264}) {
    for (const std::int64_t gap : {0, 3, 8}) {
      const std::int64_t batch = 2, length = 3, heads = 5, ld = heads * head_dim + gap;
      Array<TestType> a(batch * length * ld, 0), b(batch * length * ld, 0);
      Array<float> delta(batch * length * heads, 0);
      a.from(normal<TestType>(a.size(), 1));
      b.from(normal<TestType>(a.size(), 2));
      cuda::attention_delta(a.data(), b.data(), ld, batch, length, heads, head_dim, delta.data(), kStream);
      std::vector<double> want(static_cast<std::size_t>(delta.size())), tolerance(want);
      for (std::int64_t t = 0; t < batch * length; ++t) {
        for (std::int64_t i = 0; i < heads * head_dim; ++i) {
          const auto at = static_cast<std::size_t>((t / length * heads + i / head_dim) * length + t % length);
          const double v = static_cast<double>(to_float(a[t * ld + i])) * to_float(b[t * ld + i]);
          want[at] += v;
          tolerance[at] += 32 * 0x1p-24 * std::abs(v);
        }
      }
      require_within("delta", delta, want, tolerance);
    }
  }
}

TEMPLATE_TEST_CASE("the loss over panels agrees with a double reference, its gradient with the CPU", "", float, bf16) {
  for (const auto& [tokens, vocab, panel, gap] : std::vector<std::array<std::int64_t, 4>>{{0, 8, 8, 0},
                                                                                          {1, 1, 1, 0},
                                                                                          {2, 9, 8, 0},
                                                                                          {3, 100, 33, 1},
                                                                                          {5, 513, 256, 0},
                                                                                          {2, 4200, 2104, 8},
                                                                                          {300, 16, 16, 0}}) {
    INFO(tokens << " tokens, " << vocab << " ids in panels of " << panel);
    Array<float> max(tokens, 0), sum(tokens, 0), target(tokens, 0);
    const LossRows rows{max.data(), sum.data(), target.data()};
    const auto all = normal<float>(tokens * vocab, 1, 4.0f);
    DeviceVector<std::int32_t> targets;
    for (std::int64_t t = 0; t < tokens; ++t) targets.push_back(static_cast<std::int32_t>((t * 7 + vocab - 1) % vocab));
    for (std::int64_t t = 2; t < tokens; t += 3) targets[static_cast<std::size_t>(t)] = -1;
    const auto logits_of = [&](std::int64_t first, std::int64_t width, Array<float>& to) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::copy_n(all.begin() + t * vocab + first, width, to.data() + t * (width + gap));
      }
    };
    cuda::loss_reset(rows, tokens, kStream);
    for (std::int64_t first = 0; first < vocab; first += panel) {
      const std::int64_t width = std::min(panel, vocab - first);
      Array<float> logits(tokens * (width + gap), 0);
      logits_of(first, width, logits);
      cuda::loss_panel(logits.data(), width + gap, tokens, first, width, targets.data(), rows, kStream);
    }
    double want = 0;
    Array<double> sum_of_losses(1, 0);
    cuda::loss_sum(rows, tokens, sum_of_losses.data(), kStream);
    const double got = sum_of_losses[0];
    std::vector<double> lse;
    for (std::int64_t t = 0; t < tokens; ++t) {
      double total = 0;
      for (std::int64_t i = 0; i < vocab; ++i)
        total += std::exp(static_cast<double>(all[static_cast<std::size_t>(t * vocab + i)]));
      lse.push_back(std::log(total));
      if (targets[static_cast<std::size_t>(t)] < 0) continue;
      want += lse.back() - all[static_cast<std::size_t>(t * vocab + targets[static_cast<std::size_t>(t)])];
    }
    REQUIRE(close(got, want, 1e-6 * static_cast<double>(tokens), 32 * 0x1p-24));
    for (std::int64_t first = 0; first < vocab; first += panel) {
      const std::int64_t width = std::min(panel, vocab - first);
      Array<float> logits(tokens * (width + gap), 0);
      logits_of(first, width, logits);
      Array<TestType> gradient(tokens * width, 0), want_gradient(tokens * width, 0);
      cuda::loss_panel_backward(logits.data(), width + gap, tokens, first, width, targets.data(), rows, 0.125f,
                                gradient.data(), kStream);
      loss_panel_backward(logits.data(), width + gap, tokens, first, width, targets.data(), rows, 0.125f,
                          want_gradient.data());
      REQUIRE(gradient.guards_are_whole());
      for (std::int64_t i = 0; i < gradient.size(); ++i) {
        if (targets[static_cast<std::size_t>(i / width)] < 0) {
          REQUIRE(to_float(gradient[i]) == 0);
          REQUIRE(to_float(want_gradient[i]) == 0);
        } else if (first + i % width == targets[static_cast<std::size_t>(i / width)]) {
          const double p = std::exp(all[static_cast<std::size_t>(i / width * vocab + first + i % width)] -
                                    lse[static_cast<std::size_t>(i / width)]);
          REQUIRE(close(to_float(gradient[i]), (p - 1) * 0.125, 16 * 0x1p-24, kUnit<TestType>));
        } else if (target_in_use().starts_with("AVX")) {
          REQUIRE(bits_of(gradient[i]) == bits_of(want_gradient[i]));
        }
      }
    }
  }
}

TEST_CASE("a NaN among the logits makes the loss NaN") {
  for (const std::int64_t at : {0, 7, 299}) {
    Array<float> logits(300, 0), max(1, 0), sum(1, 0), target(1, 0);
    logits.from(normal<float>(300, 1));
    logits[at] = std::nanf("1");
    const LossRows rows{max.data(), sum.data(), target.data()};
    const DeviceVector<std::int32_t> ids = {5};
    cuda::loss_reset(rows, 1, kStream);
    cuda::loss_panel(logits.data(), 300, 1, 0, 300, ids.data(), rows, kStream);
    Array<double> loss(1, 0);
    cuda::loss_sum(rows, 1, loss.data(), kStream);
    REQUIRE(std::isnan(loss[0]));
  }
}
