// The stand-in's fibers themselves.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <vector>

#include "kernels/cuda/launch.h"

using namespace transload::kernels::cuda;

namespace {

template <class... Params, class... Args>
void start(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared, Args... args) {
  launch("kernel", kernel, grid, block, shared, nullptr, args...);
}

void rotate_in_shared(const int* from, int* to) {
  TRANSLOAD_SHARED(int, all, 96);
  all[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = all[(threadIdx.x + 40) % 96];
}
void sum_of_warp(const int* from, int* to) {
  int v = from[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, distance);
  to[threadIdx.x] = v;
}
void shift_in_warp(double* to) {
  to[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, static_cast<double>(threadIdx.x), 3);
  to[32 + threadIdx.x] = __shfl_sync(0xFFFFFFFFu, static_cast<double>(threadIdx.x), 7);
}
void leave_early() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
void part_ways() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void half_a_shuffle(int* to) {
  if (threadIdx.x < 16) to[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
}
void halves_of_a_warp(int* to) {
  const unsigned mask = threadIdx.x < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  to[threadIdx.x] = __shfl_xor_sync(mask, static_cast<int>(threadIdx.x), 1);
  __syncwarp(mask);
}
void read_what_nobody_wrote(unsigned* to) {
  TRANSLOAD_SHARED(unsigned, some, 32);
  auto* const more = reinterpret_cast<unsigned*>(stand_in::dynamic_shared());
  to[threadIdx.x] = some[threadIdx.x];
  to[32 + threadIdx.x] = more[threadIdx.x];
  __syncthreads();
  some[threadIdx.x] = more[threadIdx.x] = 1;
}
void too_much_shared() {
  TRANSLOAD_SHARED(char, some, 50 << 10);
  some[0] = 1;
}
int deeper(volatile int* at, int levels) {
  volatile int room[1024] = {};
  room[0] = *at;
  return levels == 0 ? room[0] : deeper(room, levels - 1) + room[0];
}
void recurse(int* to) {
  volatile int start = 1;
  *to = deeper(&start, 1000);
}
void note_order(std::vector<int>* order) { order->push_back(static_cast<int>(threadIdx.x)); }
void note_indices(std::vector<unsigned>* indices) {
  for (const unsigned i : {blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.y, blockDim.x, gridDim.y})
    indices->push_back(i);
}

}  // namespace

TEST_CASE("threads of a block meet at a barrier and share memory") {
  std::vector<int> from(96), to(96);
  std::iota(from.begin(), from.end(), 0);
  for (const auto order : {stand_in::Order::forward, stand_in::Order::reversed, stand_in::Order::random}) {
    stand_in::set_schedule({order, 7});
    start(rotate_in_shared, 3, 96, 0, from.data(), to.data());
    for (int i = 0; i < 96; ++i) REQUIRE(to[static_cast<std::size_t>(i)] == (i + 40) % 96);
  }
  stand_in::set_schedule({});
}

TEST_CASE("lanes of a warp exchange values") {
  std::vector<int> from(64, 1), to(64);
  start(sum_of_warp, 1, 64, 0, from.data(), to.data());
  for (const int v : to) REQUIRE(v == 32);
  std::vector<double> values(64);
  start(shift_in_warp, 1, 32, 0, values.data());
  for (std::size_t i = 0; i < 32; ++i) {
    REQUIRE(values[i] == static_cast<double>(i + 3 < 32 ? i + 3 : i));
    REQUIRE(values[32 + i] == 7);
  }
  std::vector<int> halves(32);
  start(halves_of_a_warp, 1, 32, 0, halves.data());
  for (int i = 0; i < 32; ++i) REQUIRE(halves[static_cast<std::size_t>(i)] == (i ^ 1));
}

TEST_CASE("a barrier that not all reach is reported, and the next launch works") {
  std::vector<int> to(32);
  REQUIRE_THROWS_WITH(start(leave_early, 1, 64, 0), Catch::Contains("63 wait") && Catch::Contains("1 ended"));
  REQUIRE_THROWS_WITH(start(part_ways, 1, 64, 0), Catch::Contains("stand_in_test.cpp"));
  REQUIRE_THROWS_WITH(start(half_a_shuffle, 1, 32, 0, to.data()), Catch::Contains("shuffle"));
  std::vector<int> from(64, 1), sums(64);
  start(sum_of_warp, 1, 64, 0, from.data(), sums.data());
  REQUIRE(sums[63] == 32);
}

TEST_CASE("shared memory is poisoned for every block, and bounded") {
  std::vector<unsigned> seen(64);
  start(read_what_nobody_wrote, 2, 32, 128, seen.data());
  for (const unsigned v : seen) REQUIRE(v == 0xCBCBCBCBu);
  REQUIRE_THROWS_WITH(start(too_much_shared, 1, 1, 0), Catch::Contains("shared memory"));
}

TEST_CASE("threads run in the order that was asked for") {
  std::vector<int> order, forward(100), reversed(100);
  std::iota(forward.begin(), forward.end(), 0);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  start(note_order, 1, 100, 0, &order);
  REQUIRE(order == forward);
  stand_in::set_schedule({stand_in::Order::reversed, 0});
  order.clear();
  start(note_order, 1, 100, 0, &order);
  REQUIRE(order == reversed);
  stand_in::set_schedule({stand_in::Order::random, 1});
  order.clear();
  start(note_order, 1, 100, 0, &order);
  REQUIRE(order != forward);
  std::sort(order.begin(), order.end());
  REQUIRE(order == forward);
  stand_in::set_schedule({});
}

TEST_CASE("blocks and threads know their places; an empty grid is nothing, an impossible one refused") {
  std::vector<unsigned> indices;
  start(note_indices, dim3(2, 3), dim3(1, 2), 0, &indices);
  REQUIRE(indices.size() == 2 * 3 * 2 * 6);
  REQUIRE(std::vector<unsigned>(indices.end() - 6, indices.end()) == std::vector<unsigned>{1, 2, 0, 1, 1, 3});
  indices.clear();
  start(note_indices, 0, 32, 0, &indices);
  REQUIRE(indices.empty());
  REQUIRE_THROWS_WITH(start(note_indices, 1, 1025, 0, &indices), Catch::Contains("refuse"));
}

TEST_CASE("a fiber that leaves its stack ends the process") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stderr);
    signal(SIGSEGV, SIG_DFL);  // not the test's own handler
    int result = 0;
    start(recurse, 1, 1, 0, &result);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) != 0));
}
