// What the kernel tests share: seeded arrays, comparison with a double reference under stated tolerances, runs on
// other numbers of threads and at other addresses.
#pragma once

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"

namespace transload::kernels::test {

inline float rounded(float v, float) { return v; }
inline bf16 rounded(float v, bf16) { return round_to_bf16(v); }
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;  ///< half the spacing at 1
template <class T>
inline constexpr Dtype kDtype = std::is_same_v<T, float> ? Dtype::f32 : Dtype::bf16;

/// n values of N(0, scale²), rounded to T.
template <class T>
std::vector<T> normal(std::int64_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of(0.0f, scale);
  std::vector<T> v(static_cast<std::size_t>(n));
  for (T& x : v) x = rounded(of(random), T());
  return v;
}

/// |got − want| ≤ absolute + relative·|want|, NaN never.
inline bool close(double got, double want, double absolute, double relative) {
  return std::abs(got - want) <= absolute + relative * std::abs(want);
}
template <class T>
void require_close(const std::vector<T>& got, const std::vector<double>& want, double absolute, double relative) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (close(to_float(got[i]), want[i], absolute, relative)) continue;
    INFO("element " << i << ": got " << to_float(got[i]) << ", want " << want[i] << ", tolerance " << absolute << " + "
                    << relative << " of it");
    REQUIRE(close(to_float(got[i]), want[i], absolute, relative));
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// fn() on 1, 2 and 4 threads; fn returns the bytes that must not differ.
template <class Fn>
void require_same_on_any_threads(const Fn& fn) {
  std::vector<std::invoke_result_t<Fn>> results;
  for (const int threads : {1, 2, 4}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    tbb::task_arena arena(threads);
    arena.execute([&] { results.push_back(fn()); });
  }
  REQUIRE(same_bits(results[0], results[1]));
  REQUIRE(same_bits(results[0], results[2]));
}

template <class T>
std::vector<double> as_double(const std::vector<T>& v) {
  std::vector<double> d(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) d[i] = to_float(v[i]);
  return d;
}

/// 64-byte aligned bytes, filled with NaN.
class Scratch {
 public:
  explicit Scratch(std::uint64_t bytes) : bytes_(bytes + 64, std::byte{0xFF}) {}
  std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace transload::kernels::test
