// The CUDA device tier over the stand-in: order, memory, refusals, faults; and the engine on it.
#include "offload/cuda/cuda_device.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/engine_model.h"
#include "offload/cuda/cuda_stream.h"
#include "runtime.h"

using namespace transload;
using namespace transload::cuda;
using namespace transload::testing;

namespace {

stand_in::Settings seeded(std::uint64_t seed) {
  stand_in::Settings settings;
  settings.seed = seed;
  return settings;
}

bool nothing_left() {
  const stand_in::Live live = stand_in::live();
  return live.streams == 0 && live.events == 0 && live.device_bytes == 0 && live.pinned_bytes == 0;
}

BlockView view_of(std::byte* data, std::uint64_t bytes) { return {data, bytes}; }

/// A pattern goes to the device, is changed there, and comes back.
void round_trip(CudaDevice& device) {
  constexpr std::uint64_t kBytes = 100'000;
  const auto on_device = device.memory(kBytes);
  const auto host = device.host_memory(2 * kBytes, true);
  const auto stream = device.make_stream(16);
  auto& cuda = static_cast<CudaStream&>(*stream);
  std::memset(host->base(), 7, kBytes);
  std::atomic<int> seen{-1};
  stream->launch([&] { device.copy(view_of(host->base(), kBytes), view_of(on_device->base(), kBytes), *stream); });
  stream->launch([&] {
    stand_in::enqueue(cuda.get(), "add one", [at = on_device->base()] {
      for (std::uint64_t i = 0; i < kBytes; ++i) at[i] = static_cast<std::byte>(static_cast<int>(at[i]) + 1);
    });
  });
  stream->launch(
      [&] { device.copy(view_of(on_device->base(), kBytes), view_of(host->base() + kBytes, kBytes), *stream); });
  stream->after([&] { seen = static_cast<int>(host->base()[2 * kBytes - 1]); });
  const Event end = stream->record();
  end.wait();
  REQUIRE(seen == 8);
  stream->synchronize();
}

}  // namespace

TEST_CASE("Work of a stream is in order, host work comes after it, and everything is given back") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    stand_in::reset(seeded(seed));
    {
      CudaDevice device(0);
      round_trip(device);
      REQUIRE(device.unpinned_reason().empty());
    }
    REQUIRE(nothing_left());
  }
}

TEST_CASE("Host memory that cannot be locked still works, and the reason is said") {
  stand_in::Settings settings;
  settings.pinned_bytes = 4096;
  stand_in::reset(settings);
  CudaDevice device(0);
  round_trip(device);
  REQUIRE(device.unpinned_reason().find("cudaHostAlloc: cudaErrorMemoryAllocation") != std::string::npos);
  REQUIRE(device.unpinned_reason().find("limit: ") != std::string::npos);
}

TEST_CASE("No driver, no device, a device that is not there: one sentence each") {
  stand_in::Settings settings;
  for (const int devices : {-1, 0}) {
    settings.devices = devices;
    stand_in::reset(settings);
    std::string reason;
    REQUIRE(list_devices(&reason).empty());
    REQUIRE(!reason.empty());
    REQUIRE_THROWS_AS(CudaDevice(0), InputError);
  }
  stand_in::reset({});
  REQUIRE_THROWS_AS(CudaDevice(1), InputError);
}

TEST_CASE("More device memory than there is, is refused with the numbers") {
  stand_in::reset({});
  CudaDevice device(0);
  const auto some = device.memory(200 << 20);
  try {
    device.memory(100 << 20);
    FAIL("the device has 256 MiB");
  } catch (const BudgetError& e) {
    REQUIRE(e.needed_bytes == 100u << 20);
    REQUIRE(e.given_bytes == 56u << 20);
  }
}

TEST_CASE("Frames move within the device") {
  stand_in::reset({});
  CudaDevice device(0);
  const auto memory = device.memory(8192);
  const auto host = device.host_memory(8192, true);
  const auto stream = device.make_stream(4);
  std::memset(host->base(), 5, 4096);
  stream->launch([&] { device.copy(view_of(host->base(), 4096), view_of(memory->base(), 4096), *stream); });
  stream->synchronize();
  device.move(memory->base() + 4096, memory->base(), 4096);
  stream->launch(
      [&] { device.copy(view_of(memory->base() + 4096, 4096), view_of(host->base() + 4096, 4096), *stream); });
  stream->synchronize();
  REQUIRE(static_cast<int>(host->base()[8191]) == 5);
}

TEST_CASE("The engine over a CUDA device shows what was written last, for any order of completions") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    stand_in::Settings settings = seeded(seed);
    settings.most_delay_us = static_cast<int>(seed % 5) * 20;
    stand_in::reset(settings);
    {
      CudaDevice device(0);
      const auto compute = device.make_stream(64);
      auto& cuda = static_cast<CudaStream&>(*compute);
      const Processor processor{&device, compute.get(), [&](std::function<void()> work) {
                                  compute->launch([&cuda, work] { stand_in::enqueue(cuda.get(), "test", work); });
                                }};
      run_model(seed, processor, seed % 3 == 0, seed % 4 != 0);
    }
    REQUIRE(nothing_left());
  }
}

TEST_CASE("Each call of the runtime that fails ends in an error, not in a hang or a wrong byte") {
  std::vector<std::pair<std::string, std::uint64_t>> calls;
  const auto run = [] {
    CudaDevice device(0);
    const auto compute = device.make_stream(64);
    auto& cuda = static_cast<CudaStream&>(*compute);
    const Processor processor{&device, compute.get(), [&](std::function<void()> work) {
                                compute->launch([&cuda, work] {
                                  if (stand_in::enqueue(cuda.get(), "test", work) != cudaSuccess)
                                    throw Error("a launch failed");
                                });
                              }};
    run_steps(3, processor, false, true, 1);
  };
  stand_in::reset(seeded(1));
  run();
  calls = stand_in::calls();
  for (const auto& [name, count] : calls) {
    // Giving back is done by destructors, which have nobody to tell; a refused lock has a fall-back.
    if (name.find("Destroy") != std::string::npos || name.find("Free") != std::string::npos ||
        name == "cudaHostAlloc" || name == "cudaGetLastError")
      continue;
    // Of a few calls the later ones may come when nobody looks any more.
    for (const std::uint64_t nth : {std::uint64_t{1}, count < 12 ? 1 : count / 2})
      for (const bool sticky : {false, true}) {
        CAPTURE(name, nth, sticky);
        stand_in::reset(seeded(1));
        stand_in::fail_call(name, nth, cudaErrorLaunchFailure, sticky);
        bool failed = false;
        try {
          run();
        } catch (const std::runtime_error&) {
          failed = true;
        }
        REQUIRE(failed != stand_in::fault_waits());
      }
  }
}
