#include "offload/io_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"

namespace transload {
namespace {
std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}
}  // namespace

IoQueue::IoQueue(const Options& options) : options_(options) {
  TRANSLOAD_CHECK(options.depth > 0 && options.max_pending > 0, "depth {}, pending {}", options.depth,
                  options.max_pending);
  TRANSLOAD_CHECK(options.alignment > 0 && kMemoryAlignment % options.alignment == 0, "alignment {}",
                  options.alignment);
  const auto depth = static_cast<std::size_t>(options.depth);
  bounce_.resize(depth);
  requests_.resize(depth);
  for (std::size_t i = 0; i < depth; ++i) {
    requests_[i].bounce = bounce_[i].bytes.data();
    requests_[i].write = options.write;
    idle_requests_.push_back(&requests_[i]);
  }
  finished_.resize(depth);
  // Every block but the current one has a request in flight or ends in the same round.
  blocks_.resize(2 * depth + 1);
  for (Active& block : blocks_) idle_blocks_.push_back(&block);
  live_.reserve(blocks_.size());
  ring_.resize(static_cast<std::size_t>(options.max_pending));
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  chosen_changed_.wait(lock, [this] { return chosen_; });
  if (setup_error_ != nullptr) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(setup_error_);
  }
}

IoQueue::~IoQueue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (asleep_) backend_->wake();
  }
  thread_.join();
}

void IoQueue::submit(const BlockIo& io) {
  std::uint64_t bytes = 0;
  for (const IoSlice& slice : io.slices) {
    TRANSLOAD_CHECK(reinterpret_cast<std::uintptr_t>(slice.data) % kMemoryAlignment == 0, "{}: memory at {}", io.name,
                    static_cast<const void*>(slice.data));
    TRANSLOAD_CHECK(bytes % options_.alignment == 0, "{}: a slice before the last ends at {}, alignment {}", io.name,
                    bytes, options_.alignment);
    bytes += slice.bytes;
  }
  std::lock_guard lock(mutex_);
  TRANSLOAD_CHECK(pending_.load() < options_.max_pending, "more than max_pending = {} blocks submitted and not done",
                  options_.max_pending);
  pending_.fetch_add(1);
  ring_[tail_++ % ring_.size()] = io;
  if (asleep_) {
    asleep_ = false;
    backend_->wake();
  }
}

/// On the queue's own thread: a ring belongs to the thread that makes it.
void IoQueue::choose_backend() {
  try {
    if (options_.path == IoPath::threads) {
      refusal_ = "threads were asked for";
    } else {
      backend_ = make_uring_backend(options_.depth, *options_.probe, &refusal_);
    }
    uses_uring_ = backend_ != nullptr;
    if (!uses_uring_) backend_ = make_thread_backend(options_.depth);
  } catch (...) {
    setup_error_ = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  chosen_ = true;
  chosen_changed_.notify_one();
}

void IoQueue::run() {
  choose_backend();
  while (setup_error_ == nullptr) {
    while (start_some()) {
    }
    const bool more = hash_some();
    complete_ended();
    const bool sleep = !more && may_sleep();
    if (sleep && live_.empty()) {
      std::lock_guard lock(mutex_);
      if (stop_ && head_ == tail_) break;
    }
    const std::size_t n = backend_->wait(sleep, finished_);
    for (std::size_t i = 0; i < n; ++i) finish_request(static_cast<Request&>(*finished_[i]));
    if (n > 0 && in_flight_ == 0) busy_ns_.fetch_add(now_ns() - busy_since_ns_, std::memory_order_relaxed);
  }
  backend_.reset();
}

/// True: nothing can be done before a request ends or a block is submitted, and submit() will call wake().
bool IoQueue::may_sleep() {
  std::lock_guard lock(mutex_);
  asleep_ = idle_requests_.empty() || (current_ == nullptr && head_ == tail_);
  return asleep_;
}

bool IoQueue::start_some() {
  if (idle_requests_.empty() || (current_ == nullptr && !take_next())) return false;
  Active& block = *current_;
  if (block.error == nullptr && block.issued < block.bytes) issue(block);
  if (block.error != nullptr || block.issued == block.bytes) current_ = nullptr;
  return true;
}

bool IoQueue::take_next() {
  if (idle_blocks_.empty()) return false;
  BlockIo io;
  {
    std::lock_guard lock(mutex_);
    if (head_ == tail_) return false;
    io = ring_[head_++ % ring_.size()];
  }
  Active& block = *idle_blocks_.back();
  idle_blocks_.pop_back();
  block.io = io;
  block.bytes = block.issued = block.hashed = 0;
  for (const IoSlice& slice : io.slices) block.bytes += slice.bytes;
  block.issue_at = block.hash_at = {};
  block.in_flight = 0;
  block.error = nullptr;
  block.begin_ns = block.end_ns = now_ns();
  block.hash.reset();
  live_.push_back(&block);
  current_ = &block;
  return true;
}

void IoQueue::issue(Active& block) {
  Request& request = *idle_requests_.back();
  idle_requests_.pop_back();
  fill(request, block);
  ++block.in_flight;
  if (in_flight_++ == 0) busy_since_ns_ = now_ns();
  backend_->start(&request);
}

/// The next bytes of the block as a request: whole slices and parts of slices until it is large enough.
void IoQueue::fill(Request& request, Active& block) {
  request.block = &block;
  request.file = block.io.file;
  request.offset = block.io.offset + block.issued;
  request.begin = block.issued;
  request.done = 0;
  request.retry = {};
  request.tail = nullptr;
  std::size_t n = 0;
  std::uint64_t bytes = 0;
  const std::uint64_t padding = options_.direct ? round_up(block.bytes, options_.alignment) - block.bytes : 0;
  while (block.issued < block.bytes && bytes < kRequestBytes) {
    const IoSlice& slice = block.io.slices[block.issue_at.slice];
    std::byte* data = slice.data + block.issue_at.offset;
    std::uint64_t part = std::min(slice.bytes - block.issue_at.offset, kRequestBytes - bytes);
    const bool follows =
        n > 0 && static_cast<std::byte*>(request.list[n - 1].iov_base) + request.list[n - 1].iov_len == data;
    if (!follows && n + 2 > kMostPieces) break;  // one is kept for the bounce buffer
    block.issued += part;
    block.issue_at.offset += part;
    if (block.issue_at.offset == slice.bytes) block.issue_at = {block.issue_at.slice + 1, 0};
    bytes += part;
    const bool bounced = padding > 0 && block.issued == block.bytes;
    if (bounced) {
      request.tail_bytes = options_.alignment - padding;
      part -= request.tail_bytes;
      request.tail = data + part;
    }
    if (follows) {
      request.list[n - 1].iov_len += part;
    } else if (part > 0) {
      request.list[n++] = {data, part};
    }
    if (bounced) request.list[n++] = {request.bounce, options_.alignment};
  }
  if (request.tail != nullptr) {
    bytes += padding;
    if (options_.write) {
      std::memcpy(request.bounce, request.tail, request.tail_bytes);
      std::memset(request.bounce + request.tail_bytes, 0, padding);
    }
  }
  request.end = block.issued;
  request.bytes = bytes;
  request.pieces = std::span(request.list).first(n);
}

void IoQueue::finish_request(Request& request) {
  const std::int64_t result = request.result;
  std::uint64_t moved = result > 0 ? static_cast<std::uint64_t>(result) : 0;
  // Direct I/O can only go on at a multiple of the alignment.
  if (options_.direct && moved < request.bytes) moved -= moved % options_.alignment;
  advance(request, moved);
  Active& block = *request.block;
  if (request.bytes > 0 && block.error == nullptr) {
    // Less than one alignment unit is no progress: bounded like a refusal.
    const bool stuck = result > 0 && moved == 0;
    if (request.retry.again(stuck ? -EAGAIN : result)) return backend_->start(&request);
    fail(request, result);
  }
  if (request.bytes == 0 && !options_.write && request.tail != nullptr) {
    std::memcpy(request.tail, request.bounce, request.tail_bytes);
  }
  bytes_.fetch_add(std::min(request.done, request.end - request.begin), std::memory_order_relaxed);
  request.block = nullptr;
  idle_requests_.push_back(&request);
  --in_flight_;
  --block.in_flight;
  block.end_ns = now_ns();
}

void IoQueue::advance(Request& request, std::uint64_t moved) {
  request.bytes -= moved;
  request.offset += moved;
  request.done += moved;
  std::size_t gone = 0;
  while (moved > 0) {
    iovec& piece = request.pieces[gone];
    const std::uint64_t part = std::min<std::uint64_t>(moved, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
    piece.iov_len -= part;
    moved -= part;
    if (piece.iov_len == 0) ++gone;
  }
  request.pieces = request.pieces.subspan(gone);
}

void IoQueue::fail(Request& request, std::int64_t result) {
  Active& block = *request.block;
  const BlockIo& io = block.io;
  if (result >= 0 && !options_.write) {
    block.error = std::make_exception_ptr(DamageError(fmt::format(
        "{} is truncated: {} at offset {} is {} bytes long, but the file ends after {}. Restore the store from a copy.",
        io.file->path(), io.name, io.offset, block.bytes, request.offset)));
    return;
  }
  IoError::Details details{options_.write ? "write" : "read",
                           io.file->path(),
                           io.name,
                           request.offset - request.done,
                           request.end - request.begin,
                           std::min(request.done, request.end - request.begin),
                           result < 0 ? static_cast<int>(-result) : 0,
                           ""};
  if (result == -ENOSPC || result == -EDQUOT)
    details.advice = "Free space on this file system; the last commit is whole.";
  block.error = std::make_exception_ptr(IoError(std::move(details)));
}

/// Bytes of the block, from its beginning, that are final in memory: a write's when issued, a read's when all requests
/// before them are back.
std::uint64_t IoQueue::hashable(const Active& block) const {
  std::uint64_t bytes = block.issued;
  if (options_.write || block.in_flight == 0) return bytes;
  for (const Request& request : requests_) {
    if (request.block == &block) bytes = std::min(bytes, request.begin);
  }
  return bytes;
}

/// Hashes at most one request's worth, so that ended requests do not wait long for their successors. True: there is
/// more.
bool IoQueue::hash_some() {
  std::uint64_t left = kRequestBytes;
  for (Active* block : live_) {
    const std::uint64_t end = block->error == nullptr ? hashable(*block) : block->hashed;
    while (block->hashed < end) {
      if (left == 0) return true;
      const IoSlice& slice = block->io.slices[block->hash_at.slice];
      const std::uint64_t part = std::min({slice.bytes - block->hash_at.offset, end - block->hashed, left});
      block->hash.update(slice.data + block->hash_at.offset, part);
      block->hashed += part;
      block->hash_at.offset += part;
      left -= part;
      if (block->hash_at.offset == slice.bytes) block->hash_at = {block->hash_at.slice + 1, 0};
    }
  }
  return false;
}

void IoQueue::complete_ended() {
  for (std::size_t i = 0; i < live_.size();) {
    Active& block = *live_[i];
    const bool ended = block.error != nullptr || block.hashed == block.bytes;
    if (!ended || block.in_flight > 0 || &block == current_) {
      ++i;
      continue;
    }
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    complete(block);
    idle_blocks_.push_back(&block);
  }
}

void IoQueue::complete(Active& block) {
  const BlockIo io = block.io;
  IoResult result{std::move(block.error), 0, block.end_ns - block.begin_ns, block.begin_ns};
  block.error = nullptr;
  if (result.error == nullptr) {
    result.checksum = block.hash.digest();
    if (io.check && result.checksum != io.checksum) {
      result.error = std::make_exception_ptr(DamageError(fmt::format(
          "{} is damaged: {} ({} bytes at offset {}) has checksum {:016x}, and {:016x} was written. Restore the store "
          "from a copy.",
          io.file->path(), io.name, block.bytes, io.offset, result.checksum, io.checksum)));
    }
  }
  // Before the call: who learns of the last block may commit at once.
  pending_.fetch_sub(1, std::memory_order_release);
  io.completion->done(result);
}

}  // namespace transload
