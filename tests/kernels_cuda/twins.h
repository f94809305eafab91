// What the tests of the CUDA kernels share: values that hurt, sizes around groups and blocks, buffers at any distance
// from a 16-byte boundary with guards around, comparison of bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "kernels/arrays.h"
#include "kernels/cuda/kernels.h"
#include "kernels_cuda/device_memory.h"

namespace transload::kernels::test {

/// Around groups of 8, warps and blocks of 256 threads, with and without groups.
inline const std::vector<std::int64_t> kSizes = {0,   1,   7,   8,   9,   15,   16,   17,   31,   33,   127,  128,
                                                 129, 255, 256, 257, 511, 1024, 1025, 2047, 2048, 2049, 2056, 4103};

/// Ordinary values, any bits at all, and the edges of the format, in turn.
inline float wild_value(std::mt19937_64& random) {
  static const float edges[] = {0.0f,
                                -0.0f,
                                1.4e-45f,
                                -1.4e-45f,
                                1.17549435e-38f,
                                3.4028235e38f,
                                -3.4028235e38f,
                                HUGE_VALF,
                                -HUGE_VALF,
                                1.0f,
                                -1.0f,
                                1.00390625f,
                                -1.01171875f,
                                88.5f,
                                -87.5f,
                                3.3895314e38f,
                                5.877472e-39f,
                                std::nanf("0x12"),
                                -std::nanf("0x155")};
  switch (random() % 8) {
    case 0:
      return edges[random() % std::size(edges)];
    case 1:
      return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    default:
      return std::normal_distribution<float>(0, 2)(random);
  }
}
inline void set_value(float v, float& to) { to = v; }
inline void set_value(float v, bf16& to) {
  to.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}

/// n elements, `shift` of them behind a 64-byte boundary; guards before and behind.
template <class T>
class Array {
 public:
  Array(std::int64_t n, std::int64_t shift) : n_(static_cast<std::size_t>(n)), shift_(static_cast<std::size_t>(shift)) {
    storage_.resize(n_ + shift_ + 2 * kGuard);
    std::memset(static_cast<void*>(storage_.data()), 0x5A, storage_.size() * sizeof(T));
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data() + kGuard / 2);
    first_ = kGuard / 2 + (64 - address % 64) % 64 / sizeof(T) + shift_;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() { return storage_.data() + first_; }
  std::int64_t size() const { return static_cast<std::int64_t>(n_); }
  T& operator[](std::int64_t i) { return data()[i]; }
  Array& wild(unsigned seed) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < size(); ++i) set_value(wild_value(random), data()[i]);
    return *this;
  }
  Array& from(const std::vector<T>& v) {
    std::copy(v.begin(), v.end(), data());
    return *this;
  }
  std::vector<T> values() { return {data(), data() + n_}; }
  bool guards_are_whole() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(storage_.data());
    const std::size_t begin = first_ * sizeof(T), end = begin + n_ * sizeof(T);
    for (std::size_t i = 0; i < storage_.size() * sizeof(T); ++i) {
      if ((i < begin || i >= end) && bytes[i] != 0x5A) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 128;
  std::size_t n_, shift_, first_;
  DeviceVector<T> storage_;
};

template <class T>
std::uint32_t bits_of(T v) {
  if constexpr (std::is_same_v<T, bf16>) {
    return v.bits;
  } else {
    return std::bit_cast<std::uint32_t>(v);
  }
}
/// The same bits; in fp32, where `any_nan`, any NaN for any NaN.
template <class T>
void require_same(const char* what, const T* got, const T* want, std::int64_t n, bool any_nan = true) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (bits_of(got[i]) == bits_of(want[i])) continue;
    if (any_nan && std::isnan(to_float(got[i])) && std::isnan(to_float(want[i]))) continue;
    INFO(what << "[" << i << "] of " << n << ": got " << to_float(got[i]) << ", want " << to_float(want[i]));
    REQUIRE(bits_of(got[i]) == bits_of(want[i]));
  }
}
template <class T>
void require_same(const char* what, Array<T>& got, Array<T>& want, bool any_nan = true) {
  require_same(what, got.data(), want.data(), want.size(), any_nan);
  INFO(what);
  REQUIRE(got.guards_are_whole());
}

template <class T>
DeviceVector<T> device_normal(std::int64_t n, unsigned seed) {
  const std::vector<T> values = normal<T>(n, seed);
  return DeviceVector<T>(values.begin(), values.end());
}

/// Bytes full of NaN.
inline DeviceVector<std::byte> scratch_of(std::uint64_t bytes) {
  return DeviceVector<std::byte>(bytes, std::byte{0xFF});
}

/// Where arrays start: all on a boundary, all one element behind, each elsewhere.
inline const std::vector<std::array<std::int64_t, 5>> kShifts = {{0, 0, 0, 0, 0}, {3, 3, 3, 3, 3}, {0, 1, 2, 3, 4}};

/// fn(n, shifts) for all sizes and starts.
template <class Fn>
void at_all_sizes(const Fn& fn) {
  for (const std::int64_t n : kSizes) {
    for (const auto& shift : kShifts) {
      INFO("n " << n << ", first array starts " << shift[0] << " behind a boundary, the second " << shift[1]);
      fn(n, shift);
    }
  }
}

}  // namespace transload::kernels::test
