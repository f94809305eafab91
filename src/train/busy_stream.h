// BusyStream: a stream that measures how long its tasks run, waits for events left out. Passes everything through.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "offload/stream.h"

namespace transload {

class BusyStream final : public Stream {
 public:
  explicit BusyStream(Stream& inner) : inner_(inner) {}
  void wait(Event event) override { inner_.wait(event); }
  Event record() override { return inner_.record(); }
  void synchronize() override { inner_.synchronize(); }
  bool is_inline() const override { return inner_.is_inline(); }

  /// Of all tasks that have ended.
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

 protected:
  void submit(Task task) override {
    inner_.launch([this] { began_ns_ = now_ns(); });
    inner_.launch(std::move(task));
    inner_.launch([this] { busy_ns_.fetch_add(now_ns() - began_ns_, std::memory_order_relaxed); });
  }
  void submit_after(Task task) override { inner_.after(std::move(task)); }

 private:
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
  Stream& inner_;
  std::uint64_t began_ns_ = 0;  // touched by tasks alone, in the stream's order
  std::atomic<std::uint64_t> busy_ns_{0};
};

}  // namespace transload
