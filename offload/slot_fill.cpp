#include "offload/slot_fill.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/size.h"

namespace transload {
namespace {

/// One block of zeros under way at a time.
class Filler final : public Completion {
 public:
  void done(const IoResult& result) noexcept override {
    std::lock_guard lock(mutex_);
    error_ = result.error;
    busy_ = false;
    changed_.notify_one();
  }
  void begin() { busy_ = true; }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  std::vector<IoSlice> slices;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;
  std::exception_ptr error_;
};

}  // namespace

void fill_with_zeros(IoQueue* queue, const std::vector<FillRange>& ranges,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  constexpr std::uint64_t kSliceBytes = 2 * MiB, kSlices = 16;
  const os::Memory zeros(kSliceBytes, true);
  std::array<Filler, 2> fillers;  // more blocks than one, so that the queue never runs dry
  for (Filler& filler : fillers) filler.slices.reserve(kSlices);
  std::uint64_t total = 0, done = 0, turn = 0;
  for (const FillRange& range : ranges) total += range.bytes;
  auto said = std::chrono::steady_clock::now();

  try {
    for (const FillRange& range : ranges) {
      for (std::uint64_t at = 0; at < range.bytes;) {
        Filler& filler = fillers[turn++ % fillers.size()];
        filler.wait();
        filler.rethrow();
        filler.slices.clear();
        const std::uint64_t begin = at;
        while (at < range.bytes && filler.slices.size() < kSlices) {
          filler.slices.push_back({zeros.data(), std::min(kSliceBytes, range.bytes - at)});
          at += filler.slices.back().bytes;
        }
        filler.begin();
        queue->submit({range.file, range.offset + begin, filler.slices, false, 0, "slots", &filler});
        done += at - begin;
        const auto now = std::chrono::steady_clock::now();
        if (progress && now - said > std::chrono::milliseconds(250)) {
          said = now;
          progress(done, total);
        }
      }
    }
  } catch (...) {
    for (Filler& filler : fillers) filler.wait();
    throw;
  }
  for (Filler& filler : fillers) filler.wait();
  for (Filler& filler : fillers) filler.rethrow();
  if (progress) progress(total, total);
}

}  // namespace transload
