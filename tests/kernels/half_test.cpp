// fp16 against exact values, hash and stochastic rounding.
#include "kernels/cpu/half.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/content_hash.h"
#include "kernels/cpu/stochastic.h"

using namespace transload;
using namespace transload::kernels;

namespace {

/// The value of finite half bits, from the definition.
double exact(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/// Nearest half of a non-negative value, ties to even, by comparison with its two neighbours.
std::uint16_t nearest(double value) {
  std::uint16_t below = 0;
  for (int step = 1 << 14; step > 0; step >>= 1)
    if (below + step < 0x7C00 && exact(static_cast<std::uint16_t>(below + step)) <= value)
      below = static_cast<std::uint16_t>(below + step);
  const double next = below + 1 == 0x7C00 ? 65536.0 : exact(static_cast<std::uint16_t>(below + 1));
  const double down = value - exact(below), up = next - value;
  return static_cast<std::uint16_t>(below + (up < down || (up == down && below % 2 == 1)));
}

}  // namespace

TEST_CASE("Every fp16 number becomes its value and comes back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const half h{static_cast<std::uint16_t>(bits)};
    if ((bits & 0x7FFF) > 0x7C00) {
      REQUIRE(std::isnan(to_float(h)));
      REQUIRE(to_half(to_float(h)).bits == 0x7E00);
      continue;
    }
    if ((bits & 0x7FFF) != 0x7C00) REQUIRE(static_cast<double>(to_float(h)) == exact(h.bits));
    REQUIRE(to_half(to_float(h)).bits == bits);
  }
  REQUIRE(to_float(half{0x7C00}) == std::numeric_limits<float>::infinity());
}

TEST_CASE("Rounding to fp16 is to nearest, ties to even, at every boundary") {
  for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) {
    const double here = exact(bits);
    const double next = bits + 1 == 0x7C00 ? 65536.0 : exact(static_cast<std::uint16_t>(bits + 1));
    const auto tie = static_cast<float>((here + next) / 2);
    for (const float value : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f)}) {
      REQUIRE(to_half(value).bits == nearest(value));
      REQUIRE(to_half(-value).bits == (nearest(value) | 0x8000));
    }
  }
  REQUIRE(to_half(1e-30f).bits == 0);
  REQUIRE(to_half(1e9f).bits == 0x7C00);
}

TEST_CASE("A content hash changes with any bit and is never 0") {
  std::vector<std::uint16_t> data(1024, 7);
  std::set<std::uint64_t> seen{content_hash(data.data(), 2048)};
  for (std::size_t i = 0; i < data.size(); i += 37) {
    data[i] ^= 1;
    REQUIRE(seen.insert(content_hash(data.data(), 2048)).second);
    data[i] ^= 1;
  }
  REQUIRE(seen.count(content_hash(data.data(), 2048)) == 1);
  REQUIRE(seen.count(0) == 0);
}

TEST_CASE("Stochastic rounding keeps the mean and goes to a neighbour") {
  const std::int64_t n = 1 << 16;
  const float low = 1.0f, high = 1.0078125f;
  for (const float part : {0.1f, 0.5f, 0.9f}) {
    const float value = low + part * (high - low);
    std::vector<float> values(n, value);
    std::vector<bf16> a(n), b(n);
    round_stochastic(42, 0, n, values.data(), values.data(), a.data(), b.data());
    std::int64_t up_a = 0, up_b = 0, both = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      REQUIRE((to_float(a[i]) == low || to_float(a[i]) == high));
      up_a += to_float(a[i]) == high;
      up_b += to_float(b[i]) == high;
      both += to_float(a[i]) == high && to_float(b[i]) == high;
    }
    // Binomial: five standard deviations; the two arrays are independent.
    const double sigma = std::sqrt(n * part * (1 - part));
    REQUIRE(std::abs(up_a - n * part) < 5 * sigma);
    REQUIRE(std::abs(up_b - n * part) < 5 * sigma);
    REQUIRE(std::abs(both - n * part * part) < 5 * std::sqrt(n * part * part));
  }
}

TEST_CASE("Stochastic rounding depends on stream and element alone") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  for (float& v : values) v = normal(random);
  values[3] = std::numeric_limits<float>::infinity();
  values[4] = std::nanf("");
  values[5] = 0;
  std::vector<bf16> whole(1000), other(1000), parts(1000), second(1000), third(1000);
  round_stochastic(1, 5000, 1000, values.data(), values.data(), whole.data(), second.data());
  for (std::int64_t at = 0; at < 1000; at += 129)
    round_stochastic(1, 5000 + static_cast<std::uint64_t>(at), std::min<std::int64_t>(129, 1000 - at), &values[at],
                     &values[at], &parts[at], &third[at]);
  round_stochastic(2, 5000, 1000, values.data(), values.data(), other.data(), third.data());
  int differ = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    REQUIRE(whole[i].bits == parts[i].bits);
    differ += whole[i].bits != other[i].bits;
  }
  REQUIRE(differ > 300);
  REQUIRE(whole[3].bits == 0x7F80);
  REQUIRE(whole[4].bits == 0x7FC0);
  REQUIRE(whole[5].bits == 0);
}
