// Runs CUDA kernels on the CPU: a fiber for each thread of a block, the blocks of a grid one after another. For tests
// only.
//
// A fiber runs until it meets a __syncthreads, a __syncwarp or a shuffle, or ends; then the next one runs, in the order
// that was asked for. Once all have stopped, barriers that are complete open. What cannot go on is thrown as Failure: a
// __syncthreads that some threads of the block do not reach (or reach elsewhere), a warp operation that a lane of its
// mask does not reach, too much shared memory. A stack ends at a page that must not be touched.
//
// Shared memory is full of 0xCB when a block begins. Every call site of __syncthreads and __syncwarp has a number, and
// one of them can be made to do nothing: a test then shows that it was needed.
//
// Threading: each thread of the host has its own executor; launches on several threads may run at once. The schedule
// and the skipped site are the process's: set them while nothing runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "types.h"

namespace stand_in {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order : std::uint8_t { forward, reversed, random };
/// In which order the threads of a block run between two points of synchronisation; random: drawn anew each time.
struct Schedule {
  Order order = Order::forward;
  std::uint64_t seed = 0;
};
void set_schedule(Schedule schedule);

struct Launch {
  const char* kernel = "";
  dim3 grid, block;
  std::size_t shared_bytes = 0;  ///< dynamic
};
/// Runs `thread` once for each thread of the launch, and returns when all have ended.
void launch_fibers(const Launch& launch, const std::function<void()>& thread);

struct Site {
  std::string file;
  int line = 0;
};
/// The call sites that were reached so far; a site's number is its index.
std::vector<Site> sites();
/// Number `site` does nothing from now on; −1: all do what they say.
void skip_site(int site);

// What the macros and intrinsics below and beside this file call.
int site_number(const char* file, int line);
void sync_threads(int site);
void sync_warp(int site, unsigned mask);
unsigned lane();
/// Hands 8 bytes at most to the other lanes of the mask and takes what lane `from` gave.
std::uint64_t exchange_bits(unsigned mask, std::uint64_t bits, unsigned from);
/// The block's memory for one declaration, told apart by `key`.
std::byte* shared_bytes(const void* key, std::size_t bytes, std::size_t alignment);
std::byte* dynamic_shared();

template <class T>
T exchange(unsigned mask, T value, unsigned from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange_bits(mask, bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace stand_in

inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};
inline constexpr int warpSize = 32;

#define STAND_IN_SITE                                                    \
  [] {                                                                   \
    static const int number = stand_in::site_number(__FILE__, __LINE__); \
    return number;                                                       \
  }()
#define __syncthreads() stand_in::sync_threads(STAND_IN_SITE)
#define __syncwarp(...) stand_in::sync_warp(STAND_IN_SITE, 0xFFFFFFFFu __VA_OPT__(&(__VA_ARGS__)))

#define STAND_IN_KEY           \
  [] {                         \
    static const char key = 0; \
    return &key;               \
  }()
#define STAND_IN_SHARED(type, name, count) \
  type* const name = reinterpret_cast<type*>(stand_in::shared_bytes(STAND_IN_KEY, sizeof(type) * (count), 16))
