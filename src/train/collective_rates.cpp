#include "train/collective_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/size.h"

namespace transload {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMostRoom = 128 * MiB;  // more than caches hold: in a step each chunk comes from memory
constexpr std::uint64_t kBytesAMeasurement = 256 * MiB;
constexpr std::uint64_t kLeastCalls = 8, kMostCalls = 512;

/// The least of what each rank has, number by number.
template <std::size_t n>
void take_least(double (&mine)[n], Communicator& communicator) {
  std::vector<double> all(n * static_cast<std::size_t>(communicator.size()));
  communicator.exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) mine[i % n] = std::min(mine[i % n], all[i]);
}

/// Whole blocks and this rank's parts of them, one pair after the other in memory.
class Blocks {
 public:
  Blocks(std::uint64_t whole_bytes, std::uint64_t ranks, Device* device)
      : part_bytes_(round_up(ceil_div(whole_bytes, ranks), 256)),
        pair_bytes_(part_bytes_ * (ranks + 1)),
        count_(std::max<std::uint64_t>(kMostRoom / pair_bytes_, 2)),
        memory_(device == nullptr ? make_host_memory(count_ * pair_bytes_, true)
                                  : device->memory(count_ * pair_bytes_)) {}

  BlockView part(std::uint64_t i) const { return {base(i), part_bytes_}; }
  BlockView whole(std::uint64_t i) const { return {base(i) + part_bytes_, pair_bytes_ - part_bytes_}; }
  std::uint64_t whole_bytes() const { return pair_bytes_ - part_bytes_; }
  std::uint64_t count() const { return count_; }

 private:
  std::byte* base(std::uint64_t i) const { return memory_->base() + i % count_ * pair_bytes_; }
  std::uint64_t part_bytes_, pair_bytes_, count_;
  std::unique_ptr<TierMemory> memory_;
};

using Collective = std::function<void(const BlockView& part, const BlockView& whole, Stream& stream)>;

/// From the median of many calls, so that a moment in which another program ran does not count.
double rate_of(const Blocks& blocks, Communicator& communicator, Stream& stream, const Collective& collective) {
  const std::uint64_t calls = std::clamp(kBytesAMeasurement / blocks.whole_bytes(), kLeastCalls, kMostCalls);
  std::vector<double> seconds;
  for (std::uint64_t i = 0; i < blocks.count() + calls; ++i) {  // the first round touches the memory
    if (i == blocks.count()) communicator.barrier();
    const auto start = Clock::now();
    stream.launch([&] { collective(blocks.part(i), blocks.whole(i), stream.underlying()); });
    stream.synchronize();
    if (i >= blocks.count()) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return static_cast<double>(blocks.whole_bytes()) / std::max(*middle, 1e-9);
}

}  // namespace

std::string collective_key(const TrainOptions& options) {
  return fmt::format("{} ranks, {} here, by {}, chunks of {} bytes, weights {}, gradients {}{}", options.shards.count,
                     options.ranks_here, options.transport, options.chunk_size, name_of(options.dtype),
                     name_of(options.gradients),
                     options.reduction == Reduction::library ? ", sums of the library" : "");
}

CollectiveRates measure_collectives(const TrainOptions& options, Communicator& communicator, Accelerator* accelerator) {
  const bool on_device = communicator.tier() == Tier::device;
  const auto ranks = static_cast<std::uint64_t>(communicator.size());
  Device* const device = on_device ? &accelerator->device() : nullptr;
  const std::unique_ptr<Stream> stream = on_device ? accelerator->make_comm_stream() : std::make_unique<InlineStream>();
  const auto measure = [&](std::uint64_t bytes, const Collective& collective) {
    const Blocks blocks(bytes, ranks, device);
    communicator.barrier();
    return rate_of(blocks, communicator, *stream, collective);
  };
  const std::uint64_t gradient_bytes = options.chunk_size / size_of(options.dtype) * size_of(options.gradients);
  double rates[] = {measure(options.chunk_size, [&](const BlockView& part, const BlockView& whole,
                                                    Stream& on) { communicator.all_gather(part, whole, on); }),
                    measure(gradient_bytes, [&](const BlockView& part, const BlockView& whole, Stream& on) {
                      communicator.reduce_scatter(whole, part, options.gradients, on);
                    })};
  take_least(rates, communicator);
  return {.gather = rates[0], .scatter = rates[1]};
}

ComputeRates slowest_of(const ComputeRates& mine, Communicator& communicator) {
  double rates[] = {mine.products, mine.updates, mine.memory, mine.to_device, mine.from_device};
  take_least(rates, communicator);
  return {
      .products = rates[0], .updates = rates[1], .memory = rates[2], .to_device = rates[3], .from_device = rates[4]};
}

}  // namespace transload
