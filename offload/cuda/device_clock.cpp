#include "offload/cuda/device_clock.h"

#include "base/lane.h"
#include "offload/cuda/cuda_error.h"

namespace transload::cuda {

namespace {

constexpr int kTries = 5;  // the first ones may meet a sleeping device
constexpr std::uint64_t kCloseNs = 20'000;

}  // namespace

DeviceClock::~DeviceClock() {
  if (base_ != nullptr) cudaEventDestroy(base_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void DeviceClock::open() {
  if (stream_ == nullptr)
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "clock");
  if (base_ == nullptr) check(cudaEventCreateWithFlags(&base_, 0), "cudaEventCreateWithFlags", "clock");
}

std::uint64_t DeviceClock::set(bool on) {
  const std::lock_guard lock(mutex_);
  on_ = false;
  if (!on) return 0;
  open();
  std::uint64_t between_ns = 0;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = host_clock_ns();
    check(cudaEventRecord(base_, stream_), "cudaEventRecord", "clock");
    check(cudaEventSynchronize(base_), "cudaEventSynchronize", "clock");
    between_ns = host_clock_ns() - before;
    base_ns_ = before + between_ns / 2;
    if (between_ns < kCloseNs) break;
  }
  on_ = true;
  return (between_ns + 1) / 2;
}

std::uint64_t DeviceClock::host_ns(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  float ms = 0;
  check(cudaEventElapsedTime(&ms, base_, event), "cudaEventElapsedTime", "clock");
  return base_ns_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

}  // namespace transload::cuda
