#include "kernels/cpu/attention.h"

#include <catch2/catch.hpp>
#include <limits>

#include "kernels/arrays.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

/// Inputs with padding between tokens, and the results of both directions.
template <class T>
struct Attention {
  AttentionShape s;
  std::size_t shift;  // elements by which all arrays are moved
  std::vector<T> q, k, v, dout, out, dq, dk, dv;
  std::vector<float> lse;

  Attention(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
            std::size_t by = 0)
      : shift(by) {
    s = {batch, length, heads, kv_heads, head_dim};
    s.ld_q = heads * head_dim + 4;
    s.ld_k = kv_heads * head_dim + 2;
    s.ld_v = kv_heads * head_dim;
    s.ld_o = heads * head_dim + 6;
    s.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    const std::int64_t tokens = batch * length;
    q = moved(normal<T>(tokens * s.ld_q, 1));
    k = moved(normal<T>(tokens * s.ld_k, 2));
    v = moved(normal<T>(tokens * s.ld_v, 3));
    dout = moved(normal<T>(tokens * s.ld_o, 4));
    out.resize(dout.size());
    dq.resize(q.size());
    dk.resize(k.size());
    dv.resize(v.size());
    lse.assign(static_cast<std::size_t>(batch * heads * length), NAN);
  }
  void run() {
    Scratch scratch(attention_scratch_bytes(s, kDtype<T>));
    attention_forward(s, q.data() + shift, k.data() + shift, v.data() + shift, out.data() + shift, lse.data(),
                      scratch.data());
    attention_backward(s, q.data() + shift, k.data() + shift, v.data() + shift, out.data() + shift, dout.data() + shift,
                       lse.data(), dq.data() + shift, dk.data() + shift, dv.data() + shift, scratch.data());
  }
  std::vector<float> results() const {
    std::vector<float> all(lse);
    for (const auto* part : {&out, &dq, &dk, &dv}) {
      for (std::size_t i = shift; i < part->size(); ++i) all.push_back(to_float((*part)[i]));
    }
    return all;
  }

 private:
  std::vector<T> moved(const std::vector<T>& from) const {
    std::vector<T> to(shift);
    to.insert(to.end(), from.begin(), from.end());
    return to;
  }
};

/// A value and the sum of the magnitudes that it is made of, by which its error is bounded.
struct Bounded {
  double value = 0, magnitude = 0;
  void add(double v, double m) {
    value += v;
    magnitude += m;
  }
};

template <class T>
struct Reference {
  std::vector<Bounded> out, dq, dk, dv;
  std::vector<double> lse;
  double exponent = 0;  // the largest Σ|q||k|·scale

  explicit Reference(const Attention<T>& a) {
    out.resize(a.out.size());
    dq.resize(a.q.size());
    dk.resize(a.k.size());
    dv.resize(a.v.size());
    for (std::int64_t b = 0; b < a.s.batch; ++b) {
      for (std::int64_t h = 0; h < a.s.heads; ++h) {
        for (std::int64_t t = 0; t < a.s.length; ++t) row(a, b, h, t);
      }
    }
  }

 private:
  static std::size_t at(std::int64_t token, std::int64_t ld, std::int64_t head, std::int64_t d, std::int64_t i) {
    return static_cast<std::size_t>(token * ld + head * d + i);
  }

  void row(const Attention<T>& a, std::int64_t b, std::int64_t h, std::int64_t t) {
    const AttentionShape& s = a.s;
    const std::int64_t g = h / (s.heads / s.kv_heads), d = s.head_dim, token = b * s.length + t;
    std::vector<double> p(static_cast<std::size_t>(t + 1));
    double top = -HUGE_VAL, sum = 0;
    for (std::int64_t j = 0; j <= t; ++j) {
      double score = 0, magnitude = 0;
      for (std::int64_t i = 0; i < d; ++i) {
        const double x =
            to_float(a.q[at(token, s.ld_q, h, d, i)]) * double{to_float(a.k[at(b * s.length + j, s.ld_k, g, d, i)])};
        score += x;
        magnitude += std::abs(x);
      }
      p[static_cast<std::size_t>(j)] = score * s.scale;
      exponent = std::max(exponent, magnitude * s.scale);
      top = std::max(top, score * s.scale);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse.push_back(top + std::log(sum));

    Bounded delta;
    for (std::int64_t i = 0; i < d; ++i) {
      Bounded& o = out[at(token, s.ld_o, h, d, i)];
      for (std::int64_t j = 0; j <= t; ++j) {
        const double x = p[static_cast<std::size_t>(j)] * to_float(a.v[at(b * s.length + j, s.ld_v, g, d, i)]);
        o.add(x, std::abs(x));
      }
      const double dout = to_float(a.dout[at(token, s.ld_o, h, d, i)]);
      delta.add(o.value * dout, o.magnitude * std::abs(dout));
    }
    for (std::int64_t j = 0; j <= t; ++j) {
      const std::int64_t key = b * s.length + j;
      const double weight = p[static_cast<std::size_t>(j)];
      Bounded dp;
      for (std::int64_t i = 0; i < d; ++i) {
        const double dout = to_float(a.dout[at(token, s.ld_o, h, d, i)]);
        const double x = dout * to_float(a.v[at(key, s.ld_v, g, d, i)]);
        dp.add(x, std::abs(x));
        dv[at(key, s.ld_v, g, d, i)].add(weight * dout, weight * std::abs(dout));
      }
      const double ds = weight * (dp.value - delta.value) * s.scale;
      const double magnitude = weight * (dp.magnitude + delta.magnitude) * s.scale;
      for (std::int64_t i = 0; i < d; ++i) {
        const double qi = to_float(a.q[at(token, s.ld_q, h, d, i)]), ki = to_float(a.k[at(key, s.ld_k, g, d, i)]);
        dq[at(token, s.ld_q, h, d, i)].add(ds * ki, magnitude * std::abs(ki));
        dk[at(key, s.ld_k, g, d, i)].add(ds * qi, magnitude * std::abs(qi));
      }
    }
  }
};

// Every term of a result carries the relative error of a probability: that of its exponent (a product of head_dim
// terms), of the exponential and of the sums, in fp32; and with bf16 one rounding of the probability or its gradient,
// one of the output that delta is made of. The result is rounded once more.
template <class T>
void require_bounded(const char* what, const std::vector<T>& got, const std::vector<Bounded>& want, double fp32) {
  const double roundings = std::is_same_v<T, bf16> ? 2.0 : 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double tolerance = (roundings * kUnit<T> + fp32) * want[i].magnitude + kUnit<T> * std::abs(want[i].value) +
                             1e-30;          // below which fp32 products vanish
    if (want[i].magnitude == 0.0) continue;  // padding between tokens
    INFO(what << "[" << i << "]: got " << to_float(got[i]) << ", want " << want[i].value << " within " << tolerance);
    if (!(std::abs(to_float(got[i]) - want[i].value) <= tolerance)) FAIL();
  }
}

template <class T>
void require_reference(Attention<T>& a) {
  a.run();
  const Reference<T> want(a);
  const double fp32 = 0x1p-24 * (static_cast<double>(a.s.head_dim) / 2 + static_cast<double>(a.s.length) / 8 + 16) *
                      (1 + want.exponent);
  require_bounded("out", a.out, want.out, fp32);
  require_bounded("dq", a.dq, want.dq, fp32);
  require_bounded("dk", a.dk, want.dk, fp32);
  require_bounded("dv", a.dv, want.dv, fp32);
  for (std::size_t i = 0; i < want.lse.size(); ++i) REQUIRE(std::abs(a.lse[i] - want.lse[i]) <= fp32);
}

}  // namespace

TEMPLATE_TEST_CASE("attention and its gradients agree with a double reference", "", float, bf16) {
  for (const std::int64_t length : {1, 2, 127, 128, 129, 257, 400}) {
    INFO("length " << length);
    Attention<TestType> a(1, length, 2, 1, 16);
    require_reference(a);
  }
  for (const std::int64_t head_dim : {16, 64, 80}) {
    for (const auto& [heads, kv_heads] : {std::pair<std::int64_t, std::int64_t>{3, 3}, {4, 2}}) {
      INFO("head_dim " << head_dim << ", heads " << heads << ", key/value heads " << kv_heads);
      Attention<TestType> a(2, 70, heads, kv_heads, head_dim);
      require_reference(a);
    }
  }
}

TEMPLATE_TEST_CASE("scores far apart neither overflow nor vanish", "", float, bf16) {
  Attention<TestType> a(1, 300, 1, 1, 16);
  for (auto* part : {&a.q, &a.k}) {
    for (auto& x : *part) x = rounded(to_float(x) * 16.0f, TestType());
  }
  require_reference(a);
}

TEMPLATE_TEST_CASE("a NaN in a key reaches the queries that see it", "", float, bf16) {
  Attention<TestType> a(1, 200, 1, 1, 16);
  a.k[static_cast<std::size_t>(150 * a.s.ld_k + 3)] = rounded(std::numeric_limits<float>::quiet_NaN(), TestType());
  a.run();
  for (std::int64_t t = 0; t < 200; ++t) {
    REQUIRE(std::isnan(to_float(a.out[static_cast<std::size_t>(t * a.s.ld_o)])) == (t >= 150));
    if (t >= 150) REQUIRE(std::isnan(to_float(a.dq[static_cast<std::size_t>(t * a.s.ld_q)])));
  }
}

TEMPLATE_TEST_CASE("the bits of attention depend neither on threads nor on addresses", "", float, bf16) {
  require_same_on_any_threads([] {
    Attention<TestType> a(2, 300, 4, 2, 64);
    a.run();
    return a.results();
  });
  Attention<TestType> still(1, 300, 2, 1, 64);
  still.run();
  for (const std::size_t shift : {1, 7, 32}) {
    Attention<TestType> a(1, 300, 2, 1, 64, shift);
    a.run();
    REQUIRE(same_bits(a.results(), still.results()));
  }
}

TEMPLATE_TEST_CASE("rotary turns pairs by the angle of their position, and back", "", float, bf16) {
  const std::int64_t tokens = 10, length = 5, heads = 3;
  for (const std::int64_t head_dim : {2, 16, 80, 128}) {
    const std::int64_t half = head_dim / 2, ld = heads * head_dim + 5;
    std::vector<float> cos(static_cast<std::size_t>(length * half)), sin(cos.size());
    for (std::size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(0.1f * static_cast<float>(i));
      sin[i] = std::sin(0.1f * static_cast<float>(i));
    }
    for (const bool inverse : {false, true}) {
      const auto before = normal<TestType>(tokens * ld, 7);
      auto x = before;
      rotary(x.data(), ld, tokens, length, heads, head_dim, cos.data(), sin.data(), inverse);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < ld; ++i) {
          const auto at = static_cast<std::size_t>(t * ld + i);
          if (i >= heads * head_dim) {
            REQUIRE(to_float(x[at]) == to_float(before[at]));
            continue;
          }
          const bool first = i % head_dim < half;
          const auto other = first ? at + static_cast<std::size_t>(half) : at - static_cast<std::size_t>(half);
          const auto angle = static_cast<std::size_t>(t % length * half + i % half);
          const double turn = (first ? -1.0 : 1.0) * (inverse ? -1.0 : 1.0) * sin[angle];
          const double along = double{to_float(before[at])} * cos[angle], across = to_float(before[other]) * turn;
          REQUIRE(
              close(to_float(x[at]), along + across, 0x1p-23 * (std::abs(along) + std::abs(across)), kUnit<TestType>));
        }
      }
    }
  }
}
