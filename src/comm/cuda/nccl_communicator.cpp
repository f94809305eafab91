#include "comm/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "comm/cuda/nccl_table.h"
#include "comm/host_communicator.h"
#include "offload/cuda/cuda_error.h"

namespace transload::cuda {
namespace {

constexpr std::uint64_t kMostPiece = 8 * MiB;  // of one rank; enough for full bandwidth
constexpr std::uint64_t kAlign = 256;

void copy_async(const std::byte* from, std::byte* to, std::uint64_t bytes, cudaStream_t stream) {
  if (from == to) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync", format_size(bytes));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<HostCommunicator> host, const NcclOptions& options);
  ~NcclCommunicator() override;

  const Place& place() const override { return host_->place(); }
  const char* transport() const override { return "NCCL"; }
  std::string note() const override;
  std::uint64_t memory_bytes() const override { return 2 * room_bytes_; }
  Tier tier() const override { return Tier::device; }
  void all_gather(const BlockView& in, const BlockView& out, Stream& stream) override;
  void reduce_scatter(const BlockView& in, const BlockView& out, Dtype pieces, Stream& stream) override;
  void broadcast(const BlockView& data, int root, Stream& stream) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override { host_->exchange(mine, all); }
  void publish(const Status& status) override { host_->publish(status); }
  void fail(const std::string& why) override { host_->fail(why); }

 private:
  std::uint64_t ranks() const { return static_cast<std::uint64_t>(size()); }
  std::byte* slot(std::byte* buffer, int rank) const { return buffer + static_cast<std::uint64_t>(rank) * piece_; }
  void fetch(const BlockView& from, std::uint64_t begin, std::uint64_t n, std::byte* to, cudaStream_t stream) const;
  void put(const std::byte* from, const BlockView& to, std::uint64_t begin, std::uint64_t n, cudaStream_t stream) const;
  void send_and_receive(std::uint64_t n, cudaStream_t stream);
  void verify(ncclResult_t result, const char* call);
  void check_peers();
  void abort();

  std::unique_ptr<HostCommunicator> host_;
  const Nccl& nccl_;
  const NcclOptions options_;
  std::uint64_t piece_, room_bytes_;
  std::byte* memory_ = nullptr;
  std::byte *out_ = nullptr, *in_ = nullptr;  ///< staging: a piece for each rank, and a piece from each
  std::timed_mutex mutex_;                    ///< of comm_ against the abort of the monitor's thread
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_{false};
  int loss_number_ = 0;
};

NcclCommunicator::NcclCommunicator(std::unique_ptr<HostCommunicator> host, const NcclOptions& options)
    : host_(std::move(host)), nccl_(nccl()), options_(options) {
  piece_ = std::clamp(round_up(ceil_div(options.comm.largest_bytes, ranks()), kAlign), kAlign, kMostPiece);
  room_bytes_ = piece_ * ranks();
  check(cudaSetDevice(options.device), "cudaSetDevice", fmt::format("device {}", options.device));
  check(cudaMalloc(reinterpret_cast<void**>(&memory_), memory_bytes()), "cudaMalloc", format_size(memory_bytes()));
  out_ = memory_;
  in_ = memory_ + room_bytes_;
  ncclUniqueId id{};
  if (rank() == 0) verify(nccl_.get_unique_id(&id), "ncclGetUniqueId");
  const std::string text = broadcast_string({reinterpret_cast<const char*>(&id), sizeof(id)}, 0);
  std::memcpy(&id, text.data(), sizeof(id));
  verify(nccl_.init_rank(&comm_, size(), id, rank()), "ncclCommInitRank");
  loss_number_ = host_->monitor().on_loss([this] { abort(); });
}

// All ranks' work has ended when all have left; after a loss it has been aborted.
NcclCommunicator::~NcclCommunicator() {
  host_->monitor().forget(loss_number_);
  if (!aborted_ && host_->monitor().lost()) abort();
  if (!aborted_) (void)nccl_.destroy(comm_);
  (void)cudaFree(memory_);
}

std::string NcclCommunicator::note() const {
  return options_.comm.reduction == Reduction::tree
             ? ""
             : "sums are NCCL's own: their bits depend on the topology (--reduction library)";
}

// A call that waits for the lost rank holds the mutex for ever: NCCL lets abort end it.
void NcclCommunicator::abort() {
  const std::unique_lock lock(mutex_, std::chrono::seconds(1));
  if (!aborted_.exchange(true)) (void)nccl_.abort(comm_);
}

void NcclCommunicator::check_peers() {
  if (host_->monitor().lost()) host_->monitor().check(rank());
  ncclResult_t state = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) (void)nccl_.async_error(comm_, &state);
  }
  if (state != ncclSuccess && state != ncclInProgress) verify(state, "work in flight");
}

void NcclCommunicator::verify(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  if (host_->monitor().lost()) host_->monitor().check(rank());
  throw Error(fmt::format("NCCL: {} failed on rank {}: {}.", call, rank(), nccl_.error_string(result)));
}

void NcclCommunicator::fetch(const BlockView& from, std::uint64_t begin, std::uint64_t n, std::byte* to,
                             cudaStream_t stream) const {
  from.for_each_run(begin, begin + n, [&](const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
    copy_async(data, to + (offset - begin), bytes, stream);
  });
}

void NcclCommunicator::put(const std::byte* from, const BlockView& to, std::uint64_t begin, std::uint64_t n,
                           cudaStream_t stream) const {
  to.for_each_run(begin, begin + n, [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
    copy_async(from + (offset - begin), data, bytes, stream);
  });
}

void NcclCommunicator::all_gather(const BlockView& in, const BlockView& out, Stream& stream) {
  const std::uint64_t shard = in.bytes();
  TRANSLOAD_CHECK(out.bytes() == shard * ranks(), "{} of {} bytes, room for {}", size(), shard, out.bytes());
  check_peers();
  const cudaStream_t cuda = static_cast<CudaStream&>(stream).get();
  for (std::uint64_t begin = 0, n; begin < shard; begin += n) {
    n = std::min(piece_, shard - begin);
    fetch(in, begin, n, out_, cuda);
    {
      const std::lock_guard lock(mutex_);
      verify(aborted_ ? ncclInternalError : nccl_.all_gather(out_, in_, n, ncclInt8, comm_, cuda), "ncclAllGather");
    }
    for (std::uint64_t r = 0; r < ranks(); ++r) put(in_ + r * n, out, r * shard + begin, n, cuda);
  }
}

// In the group, this rank's own piece is copied beside it, so that the pieces lie by rank.
void NcclCommunicator::send_and_receive(std::uint64_t n, cudaStream_t stream) {
  copy_async(slot(out_, rank()), slot(in_, rank()), n, stream);
  const std::lock_guard lock(mutex_);
  if (aborted_) verify(ncclInternalError, "ncclGroupStart");
  verify(nccl_.group_start(), "ncclGroupStart");
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    verify(nccl_.send(slot(out_, to), n, ncclInt8, to, comm_, stream), "ncclSend");
    verify(nccl_.receive(slot(in_, from), n, ncclInt8, from, comm_, stream), "ncclRecv");
  }
  verify(nccl_.group_end(), "ncclGroupEnd");
}

void NcclCommunicator::reduce_scatter(const BlockView& in, const BlockView& out, Dtype pieces, Stream& stream) {
  const std::uint64_t shard = out.bytes(), width = size_of(pieces);
  TRANSLOAD_CHECK(in.bytes() == shard * ranks(), "{} bytes for {} of {}", in.bytes(), size(), shard);
  check_peers();
  const cudaStream_t cuda = static_cast<CudaStream&>(stream).get();
  const bool library = options_.comm.reduction == Reduction::library;
  for (std::uint64_t begin = 0, n; begin < shard; begin += n) {
    n = std::min(piece_, shard - begin);
    for (int r = 0; r < size(); ++r) {
      std::byte* const to = library ? out_ + static_cast<std::uint64_t>(r) * n : slot(out_, r);
      fetch(in, static_cast<std::uint64_t>(r) * shard + begin, n, to, cuda);
    }
    if (library) {
      const std::lock_guard lock(mutex_);
      const ncclDataType_t type = pieces == Dtype::f32 ? ncclFloat32 : ncclBfloat16;
      verify(aborted_ ? ncclInternalError : nccl_.reduce_scatter(out_, in_, n / width, type, ncclSum, comm_, cuda),
             "ncclReduceScatter");
      put(in_, out, begin, n, cuda);
      continue;
    }
    send_and_receive(n, cuda);
    out.for_each_run(begin, begin + n, [&](std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
      options_.sum(in_ + (offset - begin), piece_ / width, size(), data, bytes / width, pieces, cuda);
    });
  }
}

void NcclCommunicator::broadcast(const BlockView& data, int root, Stream& stream) {
  check_peers();
  const cudaStream_t cuda = static_cast<CudaStream&>(stream).get();
  for (std::uint64_t begin = 0, n; begin < data.bytes(); begin += n) {
    n = std::min(room_bytes_, data.bytes() - begin);
    if (rank() == root) fetch(data, begin, n, out_, cuda);
    {
      const std::lock_guard lock(mutex_);
      verify(aborted_ ? ncclInternalError : nccl_.broadcast(out_, in_, n, ncclInt8, root, comm_, cuda),
             "ncclBroadcast");
    }
    if (rank() != root) put(in_, data, begin, n, cuda);
  }
}

}  // namespace

int device_of(const Place& place, int visible_devices) {
  if (place.local_rank < visible_devices) return place.local_rank;
  throw InputError(fmt::format("This is rank {} of {} on its node, where {} GPUs are visible: one rank a GPU.",
                               place.local_rank, place.local_size, visible_devices));
}

std::unique_ptr<Communicator> make_nccl_communicator(const Launch& launch, const NcclOptions& options) {
  if (launch.place.size == 1) return make_one_process();
  CommOptions control = options.comm;
  control.largest_bytes = 0;
  return std::make_unique<NcclCommunicator>(make_host_communicator(launch, control), options);
}

}  // namespace transload::cuda
