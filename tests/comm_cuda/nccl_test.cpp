// NCCL's communicator over the stand-in: the contract in device memory, faults, lost ranks.
#include "comm/cuda/nccl_communicator.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/size.h"
#include "comm/contract.h"
#include "comm/ranks.h"
#include "kernels/cuda/kernels.h"
#include "offload/cuda/cuda_device.h"
#include "runtime.h"

namespace transload::testing {
namespace {

using namespace transload::cuda;

void device_sum(const std::byte* pieces, std::uint64_t stride, int count, std::byte* out, std::uint64_t elements,
                Dtype type, cudaStream_t stream) {
  const auto sum = [&]<class T>(T*) {
    kernels::cuda::tree_sum(reinterpret_cast<const T*>(pieces), static_cast<std::int64_t>(stride), count,
                            reinterpret_cast<T*>(out), static_cast<std::int64_t>(elements), stream);
  };
  if (type == Dtype::f32)
    sum(static_cast<float*>(nullptr));
  else
    sum(static_cast<bf16*>(nullptr));
}

/// A block in frames of device memory, some of them neighbours.
class DeviceBlock {
 public:
  static constexpr std::uint64_t kFrame = 256 * KiB;
  DeviceBlock(std::byte* memory, std::uint64_t bytes) : bytes_(bytes) {
    const std::uint64_t frames = ceil_div(bytes, kFrame) + 1;
    std::vector<std::uint32_t> order(frames);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i + 3 < order.size(); i += 3) std::swap(order[i], order[i + 2]);
    next_.assign(frames, UINT32_MAX);
    for (std::size_t i = 0; i + 1 < order.size(); ++i) next_[order[i]] = order[i + 1];
    table_ = {memory, kFrame, next_.data()};
    first_ = order[0];
  }
  BlockView view() const { return {&table_, first_, bytes_}; }

 private:
  std::uint64_t bytes_;
  std::vector<std::uint32_t> next_;
  std::uint32_t first_ = 0;
  FrameTable table_;
};

/// Takes host blocks to the device, calls NCCL's communicator, and brings what came back. Its memory is taken once:
/// giving device memory back waits for all streams, those of other ranks too.
class OnDevice final : public Communicator {
 public:
  /// `most`: bytes of a rank's part. Small, since the stand-in protects all of it anew around each piece of work.
  explicit OnDevice(Communicator& nccl, std::uint64_t most = 2 * MiB + 8 * KiB)
      : nccl_(nccl),
        device_(0),
        room_(most * static_cast<std::uint64_t>(nccl.size()) + 512 * KiB),
        memory_(device_.memory(2 * room_)),
        stream_(device_.make_stream(64)) {}
  const Place& place() const override { return nccl_.place(); }
  const char* transport() const override { return nccl_.transport(); }
  std::uint64_t memory_bytes() const override { return nccl_.memory_bytes(); }
  void all_gather(const BlockView& in, const BlockView& out, Stream&) override {
    carry(in, out, [&](const BlockView& from, const BlockView& to) { nccl_.all_gather(from, to, *stream_); });
  }
  void reduce_scatter(const BlockView& in, const BlockView& out, Dtype type, Stream&) override {
    carry(in, out, [&](const BlockView& from, const BlockView& to) { nccl_.reduce_scatter(from, to, type, *stream_); });
  }
  void broadcast(const BlockView& data, int root, Stream&) override {
    carry(data, data, [&](const BlockView& from, const BlockView& to) {
      device_.copy(from, to, *stream_);
      nccl_.broadcast(to, root, *stream_);
    });
  }
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override { nccl_.exchange(mine, all); }

 private:
  template <class Call>
  void carry(const BlockView& in, const BlockView& out, Call&& call) {
    if (std::max(in.bytes(), out.bytes()) + DeviceBlock::kFrame * 2 > room_)
      throw std::runtime_error("too little room");
    const DeviceBlock from(memory_->base(), in.bytes()), to(memory_->base() + room_, out.bytes());
    stream_->launch([&] { device_.copy(in, from.view(), *stream_); });
    stream_->launch([&] { call(from.view(), to.view()); });
    stream_->launch([&] { device_.copy(to.view(), out, *stream_); });
    stream_->synchronize();
  }
  Communicator& nccl_;
  CudaDevice device_;
  const std::uint64_t room_;
  std::unique_ptr<TierMemory> memory_;
  std::unique_ptr<Stream> stream_;
};

NcclOptions nccl_options() {
  NcclOptions options;
  options.comm.largest_bytes = 2 * MiB;
  options.comm.timeout = std::chrono::seconds(20);
  options.sum = device_sum;
  return options;
}

void start_devices(std::uint64_t seed) {
  stand_in::Settings settings;
  settings.devices = 8;
  settings.device_bytes = 1u << 30;
  settings.seed = seed;
  stand_in::reset(settings);
}

std::vector<std::string> run_ranks(int size, const NcclOptions& options, const Body& body) {
  const int port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = make_nccl_communicator(launch_of(rank, size, port), options);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

bool nothing_left() {
  const stand_in::Live live = stand_in::live();
  return live.streams == 0 && live.events == 0 && live.device_bytes == 0;
}

}  // namespace

TEST_CASE("the contract by NCCL") {
  start_devices(2);
  for (const Clause& clause : contract()) {
    INFO(clause.name);
    const std::vector<std::string> errors = run_ranks(2, nccl_options(), [&](Communicator& nccl) {
      OnDevice c(nccl);
      clause.run(c);
    });
    CHECK(errors == std::vector<std::string>(2));
  }
  CHECK(stand_in::failure() == "");
  CHECK(stand_in::without_stream() == 0);
  CHECK(nothing_left());
}

TEST_CASE("NCCL's sums have the reference's bits, the library's own need not") {
  const auto differs = [](Reduction reduction) {
    NcclOptions options = nccl_options();
    options.comm.reduction = reduction;
    std::atomic<int> other{0};
    const std::vector<std::string> errors = run_ranks(5, options, [&](Communicator& nccl) {
      OnDevice c(nccl, 320 * KiB);
      for (std::uint64_t seed = 0; seed < 3; ++seed)
        if (hash_of_sums(c, seed) != reference_hash_of_sums(c.rank(), c.size())) ++other;
      if (nccl.note().empty() != (reduction == Reduction::tree)) throw std::runtime_error("the note is wrong");
    });
    CHECK(errors == std::vector<std::string>(5));
    return other.load();
  };
  start_devices(3);
  CHECK(differs(Reduction::tree) == 0);
  CHECK(differs(Reduction::library) == 15);
}

TEST_CASE("what NCCL refuses is said, and reaches the other ranks") {
  start_devices(1);
  for (const char* const call : {"ncclSend", "ncclCommGetAsyncError"}) {
    INFO(call);
    stand_in::fail_call(call, 3, cudaErrorIllegalAddress);
    NcclOptions options = nccl_options();
    options.comm.timeout = std::chrono::seconds(3);
    const std::vector<std::string> errors = run_ranks(2, options, [&](Communicator& nccl) {
      OnDevice c(nccl, 320 * KiB);
      try {
        for (std::uint64_t seed = 0; seed < 3; ++seed) hash_of_sums(c, seed);
      } catch (const RankLostError&) {
        throw;
      } catch (const std::exception& error) {
        nccl.fail(error.what());
        throw;
      }
      nccl.barrier();
    });
    INFO(errors[0] << " | " << errors[1]);
    CHECK((errors[0] + errors[1]).find("NCCL: ") != std::string::npos);
    CHECK((errors[0] + errors[1]).find(" failed: NCCL: ") != std::string::npos);
    CHECK_FALSE(stand_in::fault_waits());
  }
  CHECK(nothing_left());
}

TEST_CASE("a stream that waits for a lost rank's NCCL work ends") {
  start_devices(2);
  NcclOptions options = nccl_options();
  options.comm.timeout = std::chrono::seconds(3);
  const std::vector<std::string> errors = run_ranks(3, options, [&](Communicator& nccl) {
    OnDevice c(nccl, 320 * KiB);
    nccl.publish({9, 1, "summing gradients"});
    if (nccl.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      nccl.fail("the disk is full.");
      return;
    }
    hash_of_sums(c, 0);  // ends with undefined bits, or throws
    nccl.barrier();
  });
  for (const int rank : {0, 2})
    CHECK(errors[static_cast<std::size_t>(rank)] ==
          "Rank 1 failed: the disk is full. It was at step 9, chunk 1: summing gradients.");
  CHECK(nothing_left());
}

TEST_CASE("a rank takes the device of its local rank") {
  CHECK(device_of({5, 8, 1, 4}, 4) == 1);
  CHECK_THROWS_WITH(device_of({3, 4, 3, 4}, 2), Catch::Contains("rank 3 of 4 on its node, where 2 GPUs are visible"));
}

}  // namespace transload::testing
