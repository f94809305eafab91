#include "kernels/cpu/random.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>
#include <vector>

#include "on_every_target.h"

using namespace transload::kernels;

namespace {
using Words = std::array<std::uint32_t, 4>;

std::vector<float> normals(std::uint64_t key, std::uint64_t first, std::size_t n, float stddev = 1) {
  std::vector<float> to(n);
  fill_normal(key, first, static_cast<std::int64_t>(n), stddev, to.data());
  return to;
}
bool same_bits(const float* a, const float* b, std::size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0;
}
}  // namespace

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("normals are Box-Muller of the Philox words to one unit of float") {
  for (const std::uint64_t key : {0ull, 1ull, 0x0123456789ABCDEFull}) {
    const std::uint64_t first = key << 5;
    const std::vector<float> got = normals(key, first, 20000, 0.02f);
    for (std::size_t i = 0; i < got.size(); i += 2) {
      const std::uint64_t element = first + i, group = element / 4;
      const Words w = philox({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32), 0, 0},
                             {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
      const std::size_t pair = element % 4;
      const double radius = 0.02f * std::sqrt(-2 * std::log((w[pair] + 0.5) / 4294967296.0));
      const double angle = 2 * std::numbers::pi * w[pair + 1] / 4294967296.0;
      const double wanted[] = {radius * std::cos(angle), radius * std::sin(angle)};
      for (std::size_t k = 0; k < 2; ++k)
        REQUIRE(std::abs(got[i + k] - wanted[k]) <= 6.0e-8 * std::abs(wanted[k]) + 1e-15 * radius);
    }
  }
}

TEST_CASE("normals never change: the bits of a fixed key, on every target") {
  on_every_target([] {
    const std::vector<float> got = normals(42, 1000, 4096, 0.02f);
    std::uint64_t hash = 1469598103934665603ull;  // FNV-1a
    for (const float x : got) hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 1099511628211ull;
    CHECK(hash == 0x4AF789257AD8F0D2u);
  });
}

TEST_CASE("any split of a range gives the same normals") {
  const std::uint64_t base = 0xFFFFFFFFull * 4 - 50;  // crosses the counter's first word
  const std::vector<float> whole = normals(7, base, 300);
  for (std::size_t begin = 0; begin < 12; ++begin)
    for (const std::size_t n : {0, 1, 2, 3, 4, 5, 7, 64, 129, 255}) {
      const std::vector<float> part = normals(7, base + begin, n);
      REQUIRE(same_bits(part.data(), whole.data() + begin, n));
    }
}

TEST_CASE("normals write n values and no more") {
  std::vector<float> to(12, -7.0f);
  fill_normal(3, 2, 5, 1, to.data() + 1);
  CHECK(to.front() == -7.0f);
  CHECK(std::count(to.begin() + 6, to.end(), -7.0f) == 6);
  CHECK(std::count(to.begin() + 1, to.begin() + 6, -7.0f) == 0);
}

TEST_CASE("moments, tails and distribution are those of a normal") {
  constexpr std::size_t kCount = 1 << 20;
  const double n = kCount;
  for (const std::uint64_t seed : {1ull, 2ull, 3ull}) {
    std::vector<float> x = normals(parameter_key(seed, "layers.0.weight"), 0, kCount);
    double sum[5] = {};
    double neighbours = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      double power = 1;
      for (double& s : sum) s += power, power *= x[i];
      if (i > 0) neighbours += static_cast<double>(x[i]) * x[i - 1];
    }
    // Five standard errors each: of x^k they are √(E[x^2k] − E[x^k]²) / √n.
    CHECK(std::abs(sum[1] / n) < 5 / std::sqrt(n));
    CHECK(std::abs(sum[2] / n - 1) < 5 * std::sqrt(2 / n));
    CHECK(std::abs(sum[3] / n) < 5 * std::sqrt(15 / n));
    CHECK(std::abs(sum[4] / n - 3) < 5 * std::sqrt(96 / n));
    CHECK(std::abs(neighbours / n) < 5 / std::sqrt(n));
    for (const double limit : {1.0, 2.0, 3.0, 4.0}) {
      const double p = std::erfc(limit / std::numbers::sqrt2);
      const auto outside = std::count_if(x.begin(), x.end(), [&](float v) { return std::abs(v) > limit; });
      CHECK(std::abs(static_cast<double>(outside) - n * p) < 5 * std::sqrt(n * p));
    }
    std::sort(x.begin(), x.end());
    double gap = 0;  // Kolmogorov–Smirnov; 1.95/√n is passed by chance once in a thousand
    for (std::size_t i = 0; i < kCount; ++i)
      gap = std::max(gap, std::abs(0.5 * std::erfc(-x[i] / std::numbers::sqrt2) - (static_cast<double>(i) + 0.5) / n));
    CHECK(gap < 1.95 / std::sqrt(n));
  }
}

TEST_CASE("keys separate seeds and names, and words separate counters and uses") {
  CHECK(parameter_key(1, "a") == parameter_key(1, "a"));
  CHECK(parameter_key(1, "a") != parameter_key(2, "a"));
  CHECK(parameter_key(1, "a") != parameter_key(1, "b"));
  std::set<std::uint64_t> seen;
  for (std::uint64_t counter = 0; counter < 10000; ++counter) seen.insert(random_word(5, counter));
  seen.insert(random_word(5, 1ull << 32));
  seen.insert(random_word(6, 0));
  CHECK(seen.size() == 10002);
  const Words words = philox({9, 0, 0, 0}, {5, 0});  // of element 36 … 39 of key 5
  CHECK(random_word(5, 9) != (words[0] | static_cast<std::uint64_t>(words[1]) << 32));
  CHECK(random_word(5, 9) == random_word(5, 9));
}
