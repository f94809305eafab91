// Gradients on the device are the CPU's, bit for bit: sums, roundings and the exact sum of squares, over blocks whose
// frames lie apart and values that hurt.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime.h"
#include "train/cuda/cuda_kernels.h"

using namespace transload;

namespace {

constexpr std::uint64_t kFrame = 4096, kFrames = 12;
constexpr std::uint64_t kElements = kFrame * 5 / 4 - 100;  // of five frames of fp32

/// Frames of a block in an order of their own; two blocks share the arena.
const std::vector<std::uint32_t> kNext = {3, UINT32_MAX, 9, 4, 8, 7, UINT32_MAX, 2, UINT32_MAX, 10, 1, 6};

struct Arena {
  explicit Arena(std::byte* base) : table{base, kFrame, kNext.data()} {}
  BlockView sums() const { return {&table, 5, kElements * 4}; }     // 5 7 2 9 10 1
  BlockView rounded() const { return {&table, 0, kElements * 2}; }  // 0 3 4 8
  FrameTable table;
};

std::vector<float> values(unsigned seed, bool finite) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(kElements);
  for (float& x : v) {
    const float wild = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    x = random() % 4 == 0 && (std::isfinite(wild) || !finite) ? wild * 0x1p-10f : normal(random);
  }
  return v;
}

struct Result {
  std::vector<std::byte> sums, rounded;
  double squares_f32 = 0, squares_bf16 = 0;
};

/// All that the interface does, `first` and `second` where its arrays are; issue(work) returns when it has ended.
template <class Issue>
void run(GradientKernels& g, const Arena& arena, const float* first, const float* second, Result& result,
         const Issue& issue) {
  issue([&] {
    g.zero(arena.sums());
    g.zero(arena.rounded());
    g.store_or_add(arena.sums(), 0, kElements, first, false);
    g.store_or_add(arena.sums(), 5, kElements - 9, second, true);
    g.add_squares(arena.sums(), Dtype::f32, 128, kElements - 128);
  });
  result.squares_f32 = g.take_squares().value();
  issue([&] {
    g.round_values(arena.rounded(), 0, kElements, first);
    g.round_sum(arena.sums(), arena.rounded(), 3, kElements - 11, second);
    g.add_squares(arena.rounded(), Dtype::bf16, 0, 1024);
    g.add_squares(arena.rounded(), Dtype::bf16, 1024, kElements - 1024);
  });
  result.squares_bf16 = g.take_squares().value();
}

Result on_cpu(const std::vector<float>& first, const std::vector<float>& second) {
  std::vector<std::byte> memory(kFrames * kFrame);
  const Arena arena(memory.data());
  Result result;
  run(*make_cpu_gradient_kernels(), arena, first.data(), second.data(), result, [](auto work) { work(); });
  result.sums.resize(kElements * 4);
  result.rounded.resize(kElements * 2);
  arena.sums().copy_out(result.sums.data(), 0, result.sums.size());
  arena.rounded().copy_out(result.rounded.data(), 0, result.rounded.size());
  return result;
}

Result on_device(const std::vector<float>& first, const std::vector<float>& second) {
  const auto context = std::make_shared<cuda::CudaContext>(0);
  const auto stream = context->device.make_stream(64);
  context->compute = static_cast<cuda::CudaStream*>(stream.get());
  const cuda::CudaBuffer memory(*context, kFrames * kFrame, true), arrays(*context, 2 * kElements * 4, true);
  const Arena arena(memory.device()), host(memory.host());
  std::memcpy(arrays.host(), first.data(), kElements * 4);
  std::memcpy(arrays.host<float>() + kElements, second.data(), kElements * 4);
  const auto issue = [&](auto work) {
    stream->launch([&] { work(); });
    stream->synchronize();
  };
  issue([&] { arrays.to_device(context->stream()); });
  Result result;
  const auto kernels = cuda::make_cuda_gradient_kernels(context);
  run(*kernels, arena, arrays.device<float>(), arrays.device<float>() + kElements, result, issue);
  issue([&] { memory.to_host(context->stream()); });
  result.sums.resize(kElements * 4);
  result.rounded.resize(kElements * 2);
  host.sums().copy_out(result.sums.data(), 0, result.sums.size());
  host.rounded().copy_out(result.rounded.data(), 0, result.rounded.size());
  return result;
}

}  // namespace

TEST_CASE("Gradients and their squares on the device are the CPU's, bit for bit") {
  for (const bool finite : {true, false}) {
    stand_in::reset({});
    const std::vector<float> first = values(1, finite), second = values(2, finite);
    const Result cpu = on_cpu(first, second), device = on_device(first, second);
    CAPTURE(finite);
    REQUIRE(std::bit_cast<std::uint64_t>(device.squares_f32) == std::bit_cast<std::uint64_t>(cpu.squares_f32));
    REQUIRE(std::bit_cast<std::uint64_t>(device.squares_bf16) == std::bit_cast<std::uint64_t>(cpu.squares_bf16));
    REQUIRE(std::isnan(cpu.squares_f32) == !finite);
    REQUIRE(device.rounded == cpu.rounded);
    if (finite) REQUIRE(device.sums == cpu.sums);  // a NaN's payload may differ
    REQUIRE(stand_in::failure().empty());
  }
}
