#include "kernels/cpu/exact_sum.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "on_every_target.h"

using namespace transload;
using namespace transload::kernels;

namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return sum.value();
}

/// The exact sum as a plain binary number, one byte a bit, unit 2^-1074: slow, and no relative of the limbs.
class BitByBit {
 public:
  void add(double v) {
    int exponent = 0;
    const double mantissa = std::frexp(v, &exponent);
    const auto integer = static_cast<std::uint64_t>(std::ldexp(mantissa, 53));  // v = integer · 2^(exponent − 53)
    for (int b = 0; b < 53; ++b)
      if ((integer >> b) & 1) increment(static_cast<std::size_t>(exponent - 53 + b + 1074));
  }
  double value() const {
    std::size_t top = digits_.size();
    while (top > 0 && digits_[top - 1] == 0) --top;
    const std::size_t low = top > 53 ? top - 53 : 0;
    double kept = 0;
    for (std::size_t b = top; b-- > low;) kept = 2 * kept + digits_[b];
    if (low > 0 && digits_[low - 1] != 0) {
      const bool more =
          std::any_of(digits_.begin(), digits_.begin() + static_cast<long>(low) - 1, [](int d) { return d; });
      if (more || digits_[low] != 0) kept += 1;
    }
    return std::ldexp(kept, static_cast<int>(low) - 1074);
  }

 private:
  void increment(std::size_t at) {
    while (digits_[at] != 0) digits_[at++] = 0;
    digits_[at] = 1;
  }
  std::vector<int> digits_ = std::vector<int>(2300);
};

double random_positive(std::mt19937_64& random, int spread) {
  if (spread == 0) return std::bit_cast<double>(random() % (std::uint64_t{0x7FF} << 52));  // any finite one
  const double mantissa = 1 + std::ldexp(static_cast<double>(random() >> 12), -52);
  return std::ldexp(mantissa, static_cast<int>(random() % static_cast<std::uint64_t>(spread)) - spread / 2);
}

}  // namespace

TEST_CASE("known sums round once, to nearest even") {
  const double e = std::ldexp(1.0, -53);
  CHECK(sum_of({}) == 0);
  CHECK(bits(sum_of({0.0, -0.0})) == 0);
  CHECK(sum_of({1.0, e}) == 1.0);                                         // a tie, down to even
  CHECK(sum_of({1.0 + 2 * e, e}) == 1.0 + 4 * e);                         // a tie, up to even
  CHECK(sum_of({1.0, e, kLeast}) == 1.0 + 2 * e);                         // just above the tie
  CHECK(sum_of({1.0, std::ldexp(1.0, -54), std::ldexp(1.0, -55)}) == 1);  // just below
  CHECK(sum_of({1.0, e / 2, e / 2, e / 2}) == 1.0 + 2 * e);
  CHECK(sum_of({2.0 - 2 * e, e}) == 2.0);  // the carry runs through every bit
  CHECK(sum_of({kLeast, kLeast, kLeast}) == 3 * kLeast);
  CHECK(sum_of({std::ldexp(1.0, -1022), kLeast}) == std::ldexp(1.0, -1022) + kLeast);
  CHECK(sum_of({kMost, kLeast, 1e300}) > 1e308);
  CHECK(sum_of({kMost}) == kMost);
  CHECK(sum_of({kMost, std::ldexp(1.0, 969)}) == kMost);
  CHECK(sum_of({kMost, std::ldexp(1.0, 970)}) == kInfinity);  // the tie to 2^1024
  CHECK(sum_of({kMost, kMost}) == kInfinity);
  CHECK(sum_of(std::vector<double>(10, 0.1)) == 1.0);            // ten times the double next to 0.1 is 1 + 5.6e-17
  CHECK(sum_of(std::vector<double>(1000000, 0.1)) == 100000.0);  // plain addition gives 100000.00000133288
}

TEST_CASE("every single double comes back as it was") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    const double x = random_positive(random, 0);
    REQUIRE(bits(sum_of({x})) == bits(x));
  }
  for (int exponent = -1074; exponent <= 1023; ++exponent) {
    const double x = std::ldexp(1.0, exponent);
    REQUIRE(bits(sum_of({x})) == bits(x));
    REQUIRE(bits(sum_of({x, x})) == bits(2 * x));
  }
}

TEST_CASE("two-term sums are the processor's") {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100000; ++i) {
    const double x = random_positive(random, 120), y = random_positive(random, 120);
    REQUIRE(bits(sum_of({x, y})) == bits(x + y));
  }
  for (int i = 0; i < 10000; ++i) {  // near and among the denormals
    const double x = std::bit_cast<double>(random() >> 10), y = std::bit_cast<double>(random() >> 11);
    REQUIRE(bits(sum_of({x, y})) == bits(x + y));
  }
}

TEST_CASE("many-term sums are those of a bit-by-bit adder") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const int spread = seed % 4 == 0 ? 0 : seed % 4 == 1 ? 40 : seed % 4 == 2 ? 200 : 2000;
    ExactSum sum;
    BitByBit slow;
    for (std::uint64_t i = 0; i < 1 + seed; ++i) {
      const double term = random_positive(random, spread);
      sum.add(term);
      slow.add(term);
    }
    REQUIRE(bits(sum.value()) == bits(slow.value()));
  }
}

TEST_CASE("order, grouping and merging change nothing") {
  std::mt19937_64 random(6);
  std::vector<double> terms;
  for (int i = 0; i < 3000; ++i) terms.push_back(random_positive(random, i % 2 ? 60 : 1500));
  const std::uint64_t wanted = bits(sum_of(terms));
  for (int round = 0; round < 10; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    REQUIRE(bits(sum_of(terms)) == wanted);
    std::vector<ExactSum> parts(7);
    for (const double term : terms) parts[random() % parts.size()].add(term);
    ExactSum all;
    for (const ExactSum& part : parts) all.merge(part);
    all.merge(ExactSum());
    REQUIRE(bits(all.value()) == wanted);
  }
}

TEST_CASE("doubling by merging with itself loses no carry") {
  ExactSum sum;
  sum.add(1.0 / 3);
  for (int i = 1; i <= 200; ++i) {
    sum.merge(ExactSum(sum));
    REQUIRE(bits(sum.value()) == bits(std::ldexp(1.0 / 3, i)));
  }
}

TEST_CASE("a non-finite addend poisons, also through a merge") {
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    ExactSum sum, other;
    sum.add(1);
    CHECK_FALSE(sum.poisoned());
    other.add(bad);
    CHECK(other.poisoned());
    sum.merge(other);
    CHECK(sum.poisoned());
    CHECK(std::isnan(sum.value()));
  }
}

namespace {

/// The header's words: eight lanes, lane i takes elements i, i + 8, …; then a fixed tree; runs combined exactly.
template <class T>
double reference_squares(const std::vector<T>& g) {
  BitByBit sum;
  for (std::size_t begin = 0; begin < g.size(); begin += 128) {
    double lane[8] = {};
    for (std::size_t i = begin; i < std::min(g.size(), begin + 128); ++i) {
      const double x = to_float(g[i]);
      lane[i % 8] += x * x;
    }
    const double run = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    if (run != 0) sum.add(run);
  }
  return sum.value();
}

template <class T>
T convert(float x);
template <>
float convert<float>(float x) {
  return x;
}
template <>
bf16 convert<bf16>(float x) {
  return round_to_bf16(x);
}

template <class T>
double squares(const std::vector<T>& g, std::size_t begin, std::size_t end) {
  ExactSum sum;
  REQUIRE(add_squares(g.data() + begin, static_cast<std::int64_t>(end - begin), sum));
  return sum.value();
}

}  // namespace

TEMPLATE_TEST_CASE("squares have the bits of the eight-lane order on every target", "", float, bf16) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<TestType> all;
    for (int i = 0; i < 700; ++i) {
      float x = std::normal_distribution<float>(0, 1e-3f)(random);
      if (seed % 3 == 1) x = std::ldexp(x, static_cast<int>(random() % 200) - 120);
      if (seed % 3 == 2) x = i % 5 == 0 ? 3e38f : std::numeric_limits<float>::denorm_min() * static_cast<float>(i);
      all.push_back(convert<TestType>(x));
    }
    for (const std::size_t n : {0, 1, 7, 8, 9, 127, 128, 129, 255, 256, 257, 640, 699}) {
      const std::vector<TestType> g(all.begin(), all.begin() + static_cast<long>(n));
      const std::uint64_t wanted = bits(reference_squares(g));
      on_every_target([&] { REQUIRE(bits(squares(g, 0, n)) == wanted); });
    }
  }
}

TEMPLATE_TEST_CASE("squares do not depend on where the runs are cut or lie", "", float, bf16) {
  std::mt19937_64 random(9);
  std::vector<TestType> g;
  for (int i = 0; i < 128 * 20 + 5; ++i) g.push_back(convert<TestType>(std::normal_distribution<float>(0, 1)(random)));
  const std::uint64_t wanted = bits(squares(g, 0, g.size()));
  for (std::size_t cut = 128; cut < g.size(); cut += 128) {
    ExactSum tail, sum;
    REQUIRE(add_squares(g.data() + cut, static_cast<std::int64_t>(g.size() - cut), tail));
    REQUIRE(add_squares(g.data(), static_cast<std::int64_t>(cut), sum));
    tail.merge(sum);
    REQUIRE(bits(tail.value()) == wanted);
  }
  for (std::size_t shift = 1; shift < 9; ++shift) {
    std::vector<TestType> moved(shift, TestType{});
    moved.insert(moved.end(), g.begin(), g.end());
    REQUIRE(bits(squares(moved, shift, moved.size())) == wanted);
  }
}

TEMPLATE_TEST_CASE("one non-finite element anywhere is seen on every target", "", float, bf16) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const std::size_t at : {0, 5, 127, 128, 200, 300}) {
      std::vector<TestType> g(301, convert<TestType>(1.0f));
      g[at] = convert<TestType>(bad);
      on_every_target([&] {
        ExactSum sum;
        CHECK_FALSE(add_squares(g.data(), static_cast<std::int64_t>(g.size()), sum));
        CHECK(sum.poisoned());
        ExactSum before;
        CHECK(add_squares(g.data(), static_cast<std::int64_t>(at), before));
      });
    }
}
