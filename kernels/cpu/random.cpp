#include "kernels/cpu/random.h"

#include <xxhash.h>

#include <cmath>
#include <numbers>

namespace transload::kernels {
namespace {

/// Third counter word: what the numbers are for, so that no two uses share any under one key.
enum Use : std::uint32_t { kNormals, kWords };

std::array<std::uint32_t, 4> block(std::uint64_t key, std::uint64_t counter, Use use) {
  return philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), use, 0},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
}

/// 1/1, 1/3 … 1/21: the series of artanh; |s| ≤ 0.172, so s^22 / 23 is below 2^-60.
constexpr auto kArtanh = [] {
  std::array<double, 11> c{};
  for (std::size_t k = 0; k < c.size(); ++k) c[k] = 1.0 / static_cast<double>(2 * k + 1);
  return c;
}();
/// Ratios of neighbouring terms in the series of cosine and sine.
constexpr auto kCosine = [] {
  std::array<double, 8> c{};
  for (std::size_t k = 0; k < c.size(); ++k) c[k] = 1.0 / static_cast<double>((2 * k + 1) * (2 * k + 2));
  return c;
}();
constexpr auto kSine = [] {
  std::array<double, 8> c{};
  for (std::size_t k = 0; k < c.size(); ++k) c[k] = 1.0 / static_cast<double>((2 * k + 2) * (2 * k + 3));
  return c;
}();

/// Natural logarithm of x in (0, 1), to about 1e-15 relative: 2 artanh((m − 1) / (m + 1)) by its series.
double log_fixed(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), q = s * s;
  double series = 0;
  for (std::size_t k = kArtanh.size(); k-- > 0;) series = series * q + kArtanh[k];
  return exponent * std::numbers::ln2 + 2 * s * series;
}

/// cos and sin of 2π·turn/2^32, to about 1e-16: the nearest quarter turn is taken off in integers.
void cos_sin_fixed(std::uint32_t turn, double& cosine, double& sine) {
  const std::uint32_t quarter = (turn + (1u << 29)) >> 30;
  const auto rest = static_cast<std::int32_t>(turn - (quarter << 30));
  const double x = rest * (2 * std::numbers::pi / 4294967296.0), q = x * x;  // |x| ≤ π/4
  double c = 1, s = 1;
  for (std::size_t k = kCosine.size(); k-- > 0;) {
    c = 1 - c * q * kCosine[k];
    s = 1 - s * q * kSine[k];
  }
  s *= x;
  switch (quarter & 3) {
    case 0:
      cosine = c, sine = s;
      break;
    case 1:
      cosine = -s, sine = c;
      break;
    case 2:
      cosine = -c, sine = -s;
      break;
    default:
      cosine = s, sine = -c;
  }
}

/// Two independent N(0, 1) from two words.
void box_muller(std::uint32_t word0, std::uint32_t word1, double* to) {
  const double radius = std::sqrt(-2 * log_fixed((word0 + 0.5) * (1 / 4294967296.0)));
  double cosine = 0, sine = 0;
  cos_sin_fixed(word1, cosine, sine);
  to[0] = radius * cosine;
  to[1] = radius * sine;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

std::uint64_t parameter_key(std::uint64_t seed, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

void fill_normal(std::uint64_t key, std::uint64_t first, std::int64_t n, float stddev, float* to) {
  const std::uint64_t end = first + static_cast<std::uint64_t>(n);
  for (std::uint64_t element = first; element < end;) {
    const std::uint64_t group = element / 4;  // a block makes four elements
    const auto words = block(key, group, kNormals);
    std::array<double, 4> normals;
    box_muller(words[0], words[1], &normals[0]);
    box_muller(words[2], words[3], &normals[2]);
    for (; element < end && element / 4 == group; ++element)
      to[element - first] = static_cast<float>(normals[element % 4] * stddev);
  }
}

std::uint64_t random_word(std::uint64_t key, std::uint64_t counter) {
  const auto words = block(key, counter, kWords);
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

}  // namespace transload::kernels
