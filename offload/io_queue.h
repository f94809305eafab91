// One direction of the store's I/O: blocks go in, each comes out done or failed, exactly once.
//
// A block is cut into requests of at most kRequestBytes (vectors over its slices), of which at most `depth` are in
// flight; a request that comes back short goes on where it stopped, one that is refused for the moment is tried again
// (bounded), any other failure ends its block once the block's other requests are back. Blocks begin in the order of
// submission and end in any order. The checksum runs over the slices in order on the queue's own thread, behind the
// requests, while further ones are in flight.
//
// With direct I/O, lengths are multiples of the file's alignment: a block's last bytes that do not fill a multiple go
// through a small bounce buffer, one a request, so that memory behind a block is never touched. Their padding on disk
// is zeros.
//
// Threading: submit from any thread, also from a Completion. Completions run on the queue's thread. The destructor
// carries out what was submitted.
// Memory: all of it is taken at construction.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "offload/checksum.h"
#include "offload/io_backend.h"
#include "offload/store.h"

namespace transload {

/// A block's way between memory and a place in a file.
struct BlockIo {
  const os::File* file = nullptr;
  std::uint64_t offset = 0;
  std::span<const IoSlice> slices;
  bool check = false;          ///< reads: the checksum must be `checksum`
  std::uint64_t checksum = 0;  ///< xxh3-64
  const char* name = "";
  Completion* completion = nullptr;
};

class IoQueue {
 public:
  static constexpr std::uint64_t kRequestBytes = 2ull << 20;
  static constexpr std::size_t kMostPieces = 256;  // of a request: 2 MiB in slices of 8 KiB
  static constexpr std::uint64_t kMemoryAlignment = 4096;

  struct Options {
    bool write = false;
    bool direct = false;
    std::uint64_t alignment = 4096;  ///< of offsets and lengths in the file; at most kMemoryAlignment
    int depth = 8;
    int max_pending = 4096;
    IoPath path = IoPath::automatic;
    const os::File* probe = nullptr;  ///< a readable file of the store
  };
  explicit IoQueue(const Options& options);
  ~IoQueue();

  void submit(const BlockIo& io);
  /// Blocks submitted whose Completion has not been called yet.
  int pending() const { return pending_.load(std::memory_order_acquire); }

  bool uses_uring() const { return uses_uring_; }
  const std::string& refusal() const { return refusal_; }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

 private:
  /// A place in a list of slices.
  struct Cursor {
    std::size_t slice = 0;
    std::uint64_t offset = 0;
  };
  /// A block with requests in flight or to come, or bytes to hash.
  struct Active {
    BlockIo io;
    std::uint64_t bytes = 0, issued = 0, hashed = 0;
    Cursor issue_at, hash_at;
    int in_flight = 0;
    std::exception_ptr error;
    std::uint64_t begin_ns = 0, end_ns = 0;
    Checksum hash;
  };
  struct Request : IoRequest {
    Active* block = nullptr;
    std::uint64_t begin = 0, end = 0;  // within the block, without padding
    std::uint64_t done = 0;            // padding included
    os::Retry retry;
    std::byte* bounce = nullptr;
    std::byte* tail = nullptr;  // where the bounced bytes belong; null: none
    std::uint64_t tail_bytes = 0;
    std::array<iovec, kMostPieces> list;
  };

  void run();
  void choose_backend();
  bool start_some();
  bool take_next();
  void issue(Active& block);
  void fill(Request& request, Active& block);
  void finish_request(Request& request);
  void advance(Request& request, std::uint64_t moved);
  void fail(Request& request, std::int64_t result);
  bool hash_some();
  std::uint64_t hashable(const Active& block) const;
  void complete_ended();
  void complete(Active& block);
  bool may_sleep();

  const Options options_;
  bool uses_uring_ = false;
  std::string refusal_;
  std::exception_ptr setup_error_;
  std::unique_ptr<IoBackend> backend_;

  // Of the queue's thread alone.
  std::vector<Request> requests_;
  std::vector<Request*> idle_requests_;
  std::vector<IoRequest*> finished_;
  std::vector<Active> blocks_;
  std::vector<Active*> idle_blocks_, live_;  // live_: in order of submission
  Active* current_ = nullptr;                // has bytes that no request covers yet
  struct alignas(kMemoryAlignment) Page {
    std::array<std::byte, kMemoryAlignment> bytes;
  };
  std::vector<Page> bounce_;  // one a request
  int in_flight_ = 0;
  std::uint64_t busy_since_ns_ = 0;

  std::mutex mutex_;  // guards the ring and the flags
  std::vector<BlockIo> ring_;
  std::uint64_t head_ = 0, tail_ = 0;
  bool stop_ = false, asleep_ = false, chosen_ = false;
  std::condition_variable chosen_changed_;

  std::atomic<int> pending_{0};
  std::atomic<std::uint64_t> bytes_{0}, busy_ns_{0};
  std::thread thread_;
};

}  // namespace transload
