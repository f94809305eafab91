// AdamW, gradient accumulation and sums of squares: the CPU's bits.
#include "kernels/cpu/adamw.h"

#include "kernels/cpu/element_hash.h"
#include "kernels/cpu/exact_sum.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;

struct Planes {
  Array<bf16> weight, gradient;
  Array<std::int16_t> residue;
  Array<float> weight_f32, moment1, moment2, gradient_f32;

  Planes(std::int64_t n, const std::array<std::int64_t, 5>& s)
      : weight(n, s[0]),
        gradient(n, s[1]),
        residue(n, s[2]),
        weight_f32(n, s[0]),
        moment1(n, s[3]),
        moment2(n, s[4]),
        gradient_f32(n, s[1]) {
    weight.wild(1);
    gradient.wild(2);
    weight_f32.wild(3);
    moment1.wild(4);
    moment2.wild(5);
    gradient_f32.wild(6);
    std::mt19937_64 random(7);
    for (std::int64_t i = 0; i < n; ++i) {
      residue[i] = static_cast<std::int16_t>(random());
      if (i % 3 == 0) moment2[i] = std::abs(moment2[i]);
    }
  }
  AdamwRun run(bool split, bool narrow_gradient) {
    AdamwRun r;
    r.moment1 = moment1.data();
    r.moment2 = moment2.data();
    if (!split) r.weight_f32 = weight_f32.data();
    if (split) r.weight = weight.data(), r.residue = residue.data();
    if (narrow_gradient) r.gradient = gradient.data();
    if (!narrow_gradient) r.gradient_f32 = gradient_f32.data();
    return r;
  }
};

}  // namespace

TEST_CASE("AdamW gives the CPU's bits, NaN included") {
  AdamwHyper hyper;
  hyper.lr = 3e-4;
  hyper.weight_decay = 0.1;
  for (const std::uint64_t step : {1u, 1000u}) {
    const AdamwCoefficients c = coefficients(hyper, step);
    for (const bool split : {true, false}) {
      for (const bool narrow_gradient : {true, false}) {
        at_all_sizes([&](std::int64_t n, const std::array<std::int64_t, 5>& shifts) {
          Planes got(n, shifts), want(n, shifts);
          cuda::adamw(got.run(split, narrow_gradient), n, c, 0.37f, kStream);
          adamw(want.run(split, narrow_gradient), n, c, 0.37f);
          require_same("weight", got.weight, want.weight, false);
          require_same("weight_f32", got.weight_f32, want.weight_f32, false);
          require_same("moment1", got.moment1, want.moment1, false);
          require_same("moment2", got.moment2, want.moment2, false);
          for (std::int64_t i = 0; i < n; ++i) REQUIRE(got.residue[i] == want.residue[i]);
          REQUIRE(got.residue.guards_are_whole());
          REQUIRE(got.gradient.guards_are_whole());
        });
      }
    }
  }
}

TEST_CASE("tiles of another content lose their residue, the others keep it, and the hash is the CPU's") {
  constexpr std::int64_t kTile = 1024;
  for (const std::int64_t n : {0, 1, 2, 1023, 1024, 1025, 5000, 8192, 20001}) {
    INFO(n << " elements");
    Array<bf16> weight(n, 1);
    Array<std::int16_t> residue(n, 3);
    weight.wild(1);
    const std::int64_t tiles = (n + kTile - 1) / kTile;
    DeviceVector<std::uint64_t> known(static_cast<std::size_t>(tiles) + 1, 7);
    cuda::remember(weight.data(), n, known.data(), kStream);
    REQUIRE(known.back() == 7);
    for (std::int64_t t = 0; t < tiles; ++t)
      REQUIRE(known[static_cast<std::size_t>(t)] ==
              element_hash(weight.data() + t * kTile,
                           static_cast<std::size_t>(std::min(kTile, n - t * kTile)) * sizeof(bf16)));
    for (std::int64_t i = 0; i < n; ++i) residue[i] = static_cast<std::int16_t>(i % 1000 + 1);
    const auto changed = [](std::int64_t tile) { return tile % 3 == 1; };
    for (std::int64_t t = 0; t < tiles; ++t)
      if (changed(t)) weight[std::min(t * kTile + 333, n - 1)].bits ^= 1;
    cuda::forget_changed(weight.data(), n, known.data(), residue.data(), kStream);
    for (std::int64_t i = 0; i < n; ++i) REQUIRE(residue[i] == (changed(i / kTile) ? 0 : i % 1000 + 1));
    REQUIRE(residue.guards_are_whole());
  }
}

TEST_CASE("an element hash tells positions and elements, and is never zero") {
  const std::vector<std::uint16_t> a = {1, 2, 3}, b = {2, 1, 3}, c = {1, 2, 3, 0};
  const auto hash = [](const std::vector<std::uint16_t>& v) { return element_hash(v.data(), v.size() * 2); };
  REQUIRE(hash(a) != hash(b));
  REQUIRE(hash(a) != hash(c));
  REQUIRE(element_hash(nullptr, 0) != 0);
}

TEST_CASE("gradients are stored, added and rounded as on the CPU") {
  at_all_sizes([](std::int64_t n, const std::array<std::int64_t, 5>& s) {
    Array<float> values(n, s[0]), sums(n, s[1]), want(n, s[1]);
    values.wild(1);
    for (const bool add : {false, true}) {
      sums.wild(2);
      want.wild(2);
      cuda::store_or_add(sums.data(), n, values.data(), add, kStream);
      for (std::int64_t i = 0; i < n; ++i) want[i] = add ? want[i] + values[i] : values[i];
      require_same("sum", sums, want, add);
    }
    Array<bf16> rounded(n, s[2]), want_rounded(n, s[2]);
    cuda::round_values(rounded.data(), n, values.data(), kStream);
    narrow(values.data(), want_rounded.data(), n);
    require_same("rounded", rounded, want_rounded, false);

    sums.wild(3);
    cuda::round_sum(sums.data(), rounded.data(), n, values.data(), kStream);
    for (std::int64_t i = 0; i < n; ++i) want_rounded[i] = round_to_bf16(sums[i] + values[i]);
    require_same("rounded sum", rounded, want_rounded, false);
  });
}

namespace {

/// The order that exact_sum.h states, spelt out.
template <class T>
double run_in_order(const T* g, std::int64_t n) {
  std::array<double, 8> lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = to_float(g[i]);
    lanes[static_cast<std::size_t>(i % 8)] += x * x;
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

TEMPLATE_TEST_CASE("sums of squares of runs are the CPU's, and exact in sum", "", float, bf16) {
  std::vector<std::int64_t> sizes = kSizes;
  for (const std::int64_t n : {4095, 4096, 4097, 8192, 12345}) sizes.push_back(n);
  for (const std::int64_t n : sizes) {
    for (const std::int64_t shift : {0, 1, 4}) {
      INFO("n " << n << ", shift " << shift);
      Array<TestType> g(n, shift);
      g.from(normal<TestType>(n, static_cast<unsigned>(n + 1)));
      if (n > 3) set_value(1e-40f, g[3]), set_value(3e38f, g[n / 2]);
      Array<double> sums(cuda::run_count(n), 0);
      DeviceVector<std::uint32_t> not_finite = {0};
      cuda::sum_squares(g.data(), n, sums.data(), not_finite.data(), kStream);
      REQUIRE(not_finite[0] == 0);
      REQUIRE(sums.guards_are_whole());
      ExactSum got, want;
      for (std::int64_t r = 0; r < sums.size(); ++r) {
        REQUIRE(sums[r] == run_in_order(g.data() + r * 128, std::min<std::int64_t>(128, n - r * 128)));
        got.add(sums[r]);
      }
      REQUIRE(add_squares(g.data(), n, want));
      REQUIRE(got.value() == want.value());
    }
  }
}

TEMPLATE_TEST_CASE("a gradient that is not finite is told, wherever it lies", "", float, bf16) {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("1")}) {
    for (const std::int64_t at : {0, 127, 128, 4095, 4096, 4500}) {
      Array<TestType> g(4501, 0);
      g.from(normal<TestType>(4501, 1));
      set_value(bad, g[at]);
      Array<double> sums(cuda::run_count(4501), 0);
      DeviceVector<std::uint32_t> not_finite = {0};
      cuda::sum_squares(g.data(), 4501, sums.data(), not_finite.data(), kStream);
      REQUIRE(not_finite[0] == 1);
      for (std::int64_t r = 0; r < sums.size(); ++r) REQUIRE(std::isfinite(sums[r]) == (r != at / 128));
    }
  }
}
