#include "train/rates.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/os.h"
#include "base/size.h"

namespace transload {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMostRoom = 64 * MiB;
constexpr std::uint64_t kBytesAPass = 96 * MiB;  // some hundredths of a second on a drive worth the name
constexpr int kMostTransfers = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// One transfer of a pass: a slot, its piece of the buffer, what came of it. The buffer must outlive it: it ends with
/// the transfer, also where another one's error ends the measurement.
class Transfer final : public Completion {
 public:
  ~Transfer() override { finish(); }
  SlotId slot;
  IoSlice slice;

  void done(const IoResult& result) noexcept override {
    const std::lock_guard lock(mutex_);
    checksum_ = result.checksum;
    error_ = result.error;
    busy_ = false;
    changed_.notify_one();
  }
  void write(Store& store) {
    busy_ = true;
    store.submit_write(slot, {&slice, 1}, "start-up measurement", this);
  }
  void read(Store& store) {
    busy_ = true;
    store.submit_read(slot, {&slice, 1}, checksum_, "start-up measurement", this);
  }
  void wait() {
    finish();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;
  std::uint64_t checksum_ = 0;
  std::exception_ptr error_;
};

/// Bytes a second of `bytes` that one call of `pass` moves, repeated until the sample is large enough.
template <class Pass>
double rate_of(std::uint64_t bytes, Pass&& pass) {
  pass();
  const int repeats = static_cast<int>(std::clamp<std::uint64_t>(kBytesAPass / bytes, 1, 16));
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) pass();
  return static_cast<double>(bytes) * repeats / std::max(seconds_since(start), 1e-9);
}

/// The slots that hold most of the store's bytes: what most transfers look like.
std::uint64_t typical_slot(const std::vector<SlotClass>& slots) {
  const auto most = std::max_element(slots.begin(), slots.end(), [](const SlotClass& a, const SlotClass& b) {
    return a.bytes * a.count < b.bytes * b.count;
  });
  return most == slots.end() ? 0 : most->bytes;
}

void measure_store(Store& store, std::uint64_t slot_bytes, const os::Memory& buffer, Rates& rates) {
  Transfer transfers[kMostTransfers];
  std::size_t n = 0;
  const std::uint64_t most = std::min<std::uint64_t>(kMostTransfers, buffer.bytes() / slot_bytes);
  for (; n < most; ++n) {
    transfers[n].slot = store.allocate(slot_bytes);
    if (!transfers[n].slot.valid()) break;
    transfers[n].slice = {buffer.data() + n * slot_bytes, slot_bytes};
  }
  const auto pass = [&](auto&& submit) {
    for (std::size_t i = 0; i < n; ++i) submit(i);
    for (std::size_t i = 0; i < n; ++i) transfers[i].wait();
  };
  if (n > 0) {
    rates.nvme_write = rate_of(n * slot_bytes, [&] { pass([&](std::size_t i) { transfers[i].write(store); }); });
    rates.nvme_read = rate_of(n * slot_bytes, [&] { pass([&](std::size_t i) { transfers[i].read(store); }); });
    rates.nvme_duplex = rate_of(n * slot_bytes, [&] {
      pass([&](std::size_t i) { i % 2 == 0 ? transfers[i].write(store) : transfers[i].read(store); });
    });
  }
  for (std::size_t i = 0; i < n; ++i) store.free(transfers[i].slot);
}

}  // namespace

Rates measure_rates(Store* store, const std::vector<SlotClass>& slots, std::uint64_t room_bytes, double link_rate) {
  Rates rates;
  const std::uint64_t slot_bytes = typical_slot(slots);
  const std::uint64_t wanted = std::max<std::uint64_t>(kMostTransfers * slot_bytes, 16 * MiB);
  const os::Memory buffer(std::max(std::min({wanted, kMostRoom, room_bytes}), 64 * KiB), true);
  if (store != nullptr && slot_bytes > 0 && slot_bytes <= buffer.bytes())
    measure_store(*store, slot_bytes, buffer, rates);
  const std::uint64_t half = buffer.bytes() / 2;
  const double copy = rate_of(half, [&] { std::memcpy(buffer.data(), buffer.data() + half, half); });
  rates.memory = 2 * copy;
  rates.host_to_device = rates.device_to_host = link_rate > 0 ? std::min(link_rate, copy) : copy;
  return rates;
}

void measure_device(Device& device, std::uint64_t room_bytes, Rates& rates) {
  const std::uint64_t bytes = std::max(std::min(kMostRoom, room_bytes / 2), 64 * KiB);
  const auto there = device.memory(bytes), here = device.host_memory(bytes, true);
  const auto stream = device.make_stream(4);
  const BlockView on_device(there->base(), bytes), on_host(here->base(), bytes);
  const auto rate = [&](const BlockView& from, const BlockView& to) {
    return rate_of(bytes, [&] {
      stream->launch([&] { device.copy(from, to, *stream); });
      stream->synchronize();
    });
  };
  rates.host_to_device = rate(on_host, on_device);
  rates.device_to_host = rate(on_device, on_host);
}

AcceleratorLinks measure_both_ways(Device& device, std::uint64_t bytes) {
  const auto there = device.memory(2 * bytes), here = device.host_memory(2 * bytes, true);
  const std::unique_ptr<Stream> streams[2] = {device.make_stream(4), device.make_stream(4)};
  const BlockView on_device[2] = {{there->base(), bytes}, {there->base() + bytes, bytes}};
  const BlockView on_host[2] = {{here->base(), bytes}, {here->base() + bytes, bytes}};
  const auto pass = [&](bool down, bool up) {
    if (down) streams[0]->launch([&] { device.copy(on_host[0], on_device[0], *streams[0]); });
    if (up) streams[1]->launch([&] { device.copy(on_device[1], on_host[1], *streams[1]); });
    for (const auto& stream : streams) stream->synchronize();
  };
  pass(true, true);  // the device's memory is written before it is read
  return {.host_to_device = rate_of(bytes, [&] { pass(true, false); }),
          .device_to_host = rate_of(bytes, [&] { pass(false, true); }),
          .both = rate_of(2 * bytes, [&] { pass(true, true); }),
          .bytes = bytes,
          .host = {}};
}

}  // namespace transload
