// A store in plain memory for engine tests: completions come from a thread of its own, late and out of order by seed;
// every checksum is compared; the k-th transfer can be made to fail.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/lane.h"
#include "offload/store.h"

namespace transload {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::uint64_t seed, std::uint64_t slots = UINT64_MAX)
      : random_(seed), slots_(slots), thread_([this] { run(); }) {}
  ~MemoryStore() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  const Manifest& committed() const override { return manifest_; }
  SlotId allocate(std::uint64_t) override {
    std::lock_guard lock(mutex_);
    if (content_.size() >= slots_) return {};
    const SlotId slot(next_++);
    content_[slot.value] = {};
    return slot;
  }
  void free(SlotId slot) override {
    std::lock_guard lock(mutex_);
    for (const StoredBlock& b : manifest_.blocks)
      if (b.slot == slot) {
        doomed_.push_back(slot);
        return;
      }
    content_.erase(slot.value);
  }
  void submit_read(SlotId slot, std::span<const IoSlice> slices, std::uint64_t checksum, const char*,
                   Completion* done) override {
    submit({slot, slices, checksum, done, false});
  }
  void submit_write(SlotId slot, std::span<const IoSlice> slices, const char*, Completion* done) override {
    submit({slot, slices, 0, done, true});
  }
  void commit(const std::string& metadata, std::span<const StoredBlock> blocks) override {
    std::lock_guard lock(mutex_);
    if (!queue_.empty() || busy_) in_flight_at_commit = true;
    manifest_.metadata = metadata;
    manifest_.blocks.assign(blocks.begin(), blocks.end());
    ++manifest_.sequence;
    for (const SlotId slot : doomed_) content_.erase(slot.value);
    doomed_.clear();
  }
  // One store alone commits as a whole.
  void prepare(const std::string& metadata, std::span<const StoredBlock> blocks) override { commit(metadata, blocks); }
  void finish() override {}
  void drop() override {}
  void close() override {}
  Facts facts() const override { return {}; }
  std::string content(SlotId slot) const {
    std::lock_guard lock(mutex_);
    return content_.at(slot.value);
  }
  void fail_at(int transfer) { fail_at_ = transfer; }
  bool idle() const {
    std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
  }
  bool in_flight_at_commit = false;
  bool damage_reads = false;

 private:
  struct Request {
    SlotId slot;
    std::span<const IoSlice> slices;
    std::uint64_t checksum;
    Completion* done;
    bool write;
  };
  static std::uint64_t hash(const std::string& s) { return std::hash<std::string>()(s) | 1; }
  void submit(Request r) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(r);
    }
    changed_.notify_all();
  }
  IoResult perform(const Request& r) {
    std::lock_guard lock(mutex_);
    IoResult result;
    result.begin_ns = host_clock_ns();
    result.busy_ns = 1;
    if (fail_at_ >= 0 && fail_at_-- == 0) {
      result.error = std::make_exception_ptr(IoError({.operation = "write", .path = "memory", .error = 28}));
      return result;
    }
    std::string& bytes = content_.at(r.slot.value);
    if (r.write) {
      bytes.clear();
      for (const IoSlice& s : r.slices) bytes.append(reinterpret_cast<const char*>(s.data), s.bytes);
      result.checksum = hash(bytes);
      return result;
    }
    result.checksum = hash(bytes);
    if (result.checksum != r.checksum) result.error = std::make_exception_ptr(DamageError("damaged"));
    std::size_t at = 0;
    for (const IoSlice& s : r.slices) {
      std::memcpy(s.data, bytes.data() + at, s.bytes);
      at += s.bytes;
    }
    return result;
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::size_t pick = random_() % std::min<std::size_t>(queue_.size(), 3);
      const Request r = queue_[pick];
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(pick));
      busy_ = true;
      const bool late = random_() % 4 == 0;
      lock.unlock();
      if (late) std::this_thread::sleep_for(std::chrono::microseconds(50));
      const IoResult result = perform(r);
      lock.lock();
      busy_ = false;
      lock.unlock();
      r.done->done(result);
      lock.lock();
    }
  }

  std::mt19937_64 random_;
  std::uint64_t slots_;
  std::uint64_t next_ = 0;
  std::map<std::uint32_t, std::string> content_;
  std::vector<SlotId> doomed_;
  Manifest manifest_;
  std::deque<Request> queue_;
  bool busy_ = false, stop_ = false;
  int fail_at_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace transload
