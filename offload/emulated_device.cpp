#include <chrono>
#include <cstring>
#include <thread>

#include "offload/arena.h"
#include "offload/device.h"

namespace transload {
namespace {

class HostMemory final : public TierMemory {
 public:
  HostMemory(std::uint64_t bytes, bool populate) : arena_(bytes, populate) {}
  std::byte* base() const override { return arena_.base(); }

 private:
  Arena arena_;
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(double link_rate) : link_rate_(link_rate) {}

  std::unique_ptr<TierMemory> memory(std::uint64_t bytes) override { return make_host_memory(bytes, true); }
  std::unique_ptr<TierMemory> host_memory(std::uint64_t bytes, bool populate) override {
    return make_host_memory(bytes, populate);
  }
  std::unique_ptr<Stream> make_stream(std::size_t capacity) override { return std::make_unique<QueueStream>(capacity); }

  void copy(const BlockView& from, const BlockView& to, Stream&) override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    from.for_each_run(0, from.bytes(), [&](const std::byte* data, std::uint64_t offset, std::uint64_t n) {
      to.copy_in(data, offset, offset + n);
    });
    if (link_rate_ <= 0) return;
    const std::chrono::duration<double> least(static_cast<double>(from.bytes()) / link_rate_);
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(least));
  }

  void move(std::byte* to, const std::byte* from, std::uint64_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  double link_rate_;
};

}  // namespace

std::unique_ptr<TierMemory> make_host_memory(std::uint64_t bytes, bool populate) {
  return std::make_unique<HostMemory>(bytes, populate);
}

std::unique_ptr<Device> make_emulated_device(double link_rate) { return std::make_unique<EmulatedDevice>(link_rate); }

}  // namespace transload
