#include "kernels/cpu/random.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TRANSLOAD_RANDOM_ONCE
#define TRANSLOAD_RANDOM_ONCE
namespace transload::kernels {
namespace {

constexpr std::size_t kPairs = 64;  // made at a time: 32 blocks of four words
struct Batch {
  alignas(64) std::array<std::uint32_t, kPairs> radius_words, angle_words;
  alignas(64) std::array<double, kPairs> cosines, sines;  ///< two independent N(0, 1) from each pair of words
};

/// 1/1, 1/3 … 1/21: the series of artanh; its argument is below 0.172, so what is left out is below 2^-60.
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

}  // namespace
}  // namespace transload::kernels
#endif

// Multiplications and additions stay apart (no fma), so that every target and every compiler gives the same bits.
HWY_BEFORE_NAMESPACE();
namespace transload::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<double, 8>;
using DU = hn::RebindToUnsigned<D>;
using DI32 = hn::Rebind<std::int32_t, D>;
using V = hn::Vec<D>;

HWY_INLINE V constant(double x) { return hn::Set(D(), x); }

/// Natural logarithm of normal x in (0, 1), to about 1e-15 relative: 2 artanh((m − 1) / (m + 1)) by its series.
HWY_INLINE V log_fixed(V x) {
  const D d;
  const DU du;
  // m in [√½, √2): the exponent is counted from √½ up.
  const auto bits = hn::BitCast(du, x), root_half = hn::Set(du, 0x3FE6A09E667F3BCDull);
  const auto from_root = hn::Sub(bits, root_half);
  const auto mantissa = hn::And(from_root, hn::Set(du, 0x000FFFFFFFFFFFFFull));
  const V m = hn::BitCast(d, hn::Add(mantissa, root_half));
  // exponent ≤ 0 as a double: −exponent is a small integer in the low bits of 2^52 + n.
  const auto minus = hn::Sub(hn::Set(du, 0), hn::ShiftRight<52>(hn::Sub(from_root, mantissa)));
  const auto small = hn::And(minus, hn::Set(du, 0xFFF));
  const V magic = constant(4503599627370496.0);
  const V exponent = hn::Sub(magic, hn::BitCast(d, hn::Or(small, hn::BitCast(du, magic))));

  const V s = hn::Div(hn::Sub(m, constant(1)), hn::Add(m, constant(1))), q = hn::Mul(s, s);
  V series = hn::Zero(d);
  for (std::size_t k = kArtanh.size(); k-- > 0;) series = hn::Add(hn::Mul(series, q), constant(kArtanh[k]));
  return hn::Add(hn::Mul(exponent, constant(std::numbers::ln2)), hn::Mul(hn::Mul(constant(2), s), series));
}

/// cos and sin of 2π·turn/2^32, to about 1e-16: the nearest quarter turn is taken off in integers.
HWY_INLINE void cos_sin_fixed(const std::uint32_t* turns, V& cosine, V& sine) {
  const D d;
  const DI32 di;
  const hn::RebindToUnsigned<DI32> du;
  const auto turn = hn::LoadU(du, turns);
  const auto quarter = hn::ShiftRight<30>(hn::Add(turn, hn::Set(du, 1u << 29)));
  const auto rest = hn::BitCast(di, hn::Sub(turn, hn::ShiftLeft<30>(quarter)));
  const V x = hn::Mul(hn::PromoteTo(d, rest), constant(2 * std::numbers::pi / 4294967296.0));  // |x| ≤ π/4
  const V q = hn::Mul(x, x);
  V c = constant(1), s = constant(1);
  for (std::size_t k = kCosine.size(); k-- > 0;) {
    c = hn::Sub(constant(1), hn::Mul(hn::Mul(c, q), constant(kCosine[k])));
    s = hn::Sub(constant(1), hn::Mul(hn::Mul(s, q), constant(kSine[k])));
  }
  s = hn::Mul(s, x);
  const V which = hn::PromoteTo(d, hn::BitCast(di, quarter));  // 0, 1, 2, 3 quarters are taken off
  const auto one = hn::Eq(which, constant(1)), two = hn::Eq(which, constant(2)), three = hn::Eq(which, constant(3));
  const auto swapped = hn::Or(one, three);
  const V first = hn::IfThenElse(swapped, s, c), second = hn::IfThenElse(swapped, c, s);
  cosine = hn::IfThenElse(hn::Or(one, two), hn::Neg(first), first);
  sine = hn::IfThenElse(hn::Or(two, three), hn::Neg(second), second);
}

void box_muller(Batch& batch) {
  const D d;
  const DI32 di;
  for (std::size_t i = 0; i < kPairs; i += hn::Lanes(d)) {
    // (word + ½) / 2^32, by way of a signed integer: exact.
    const auto word = hn::LoadU(hn::RebindToUnsigned<DI32>(), batch.radius_words.data() + i);
    const auto centred = hn::Xor(word, hn::Set(hn::RebindToUnsigned<DI32>(), 0x80000000u));
    const V integer = hn::PromoteTo(d, hn::BitCast(di, centred));
    const V uniform = hn::Mul(hn::Add(integer, constant(2147483648.5)), constant(1 / 4294967296.0));
    const V radius = hn::Sqrt(hn::Mul(constant(-2), log_fixed(uniform)));
    V cosine, sine;
    cos_sin_fixed(batch.angle_words.data() + i, cosine, sine);
    hn::StoreU(hn::Mul(radius, cosine), d, batch.cosines.data() + i);
    hn::StoreU(hn::Mul(radius, sine), d, batch.sines.data() + i);
  }
}

}  // namespace transload::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(box_muller);

/// Third counter word: what the numbers are for, so that no two uses share any under one key.
enum Use : std::uint32_t { kNormals, kWords };

std::array<std::uint32_t, 4> block(std::uint64_t key, std::uint64_t counter, Use use) {
  return philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), use, 0},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
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
  constexpr std::uint64_t kBatch = 2 * kPairs;  // elements
  const std::uint64_t end = first + static_cast<std::uint64_t>(n);
  Batch batch{};
  for (std::uint64_t begin = first / 4 * 4; begin < end; begin += kBatch) {
    const std::uint64_t stop = std::min(end, begin + kBatch);
    for (std::uint64_t e = begin; e < stop; e += 4) {
      const auto words = block(key, e / 4, kNormals);  // four elements
      const std::size_t pair = (e - begin) / 2;
      batch.radius_words[pair] = words[0], batch.angle_words[pair] = words[1];
      batch.radius_words[pair + 1] = words[2], batch.angle_words[pair + 1] = words[3];
    }
    HWY_DYNAMIC_DISPATCH(box_muller)(batch);
    for (std::uint64_t e = std::max(begin, first); e < stop; ++e) {
      const std::size_t pair = (e - begin) / 2;
      const double normal = (e - begin) % 2 == 0 ? batch.cosines[pair] : batch.sines[pair];
      to[e - first] = static_cast<float>(normal * stddev);
    }
  }
}

std::uint64_t random_word(std::uint64_t key, std::uint64_t counter) {
  const auto words = block(key, counter, kWords);
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

}  // namespace transload::kernels
#endif
