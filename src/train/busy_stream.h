// BusyStream: a stream that measures how long its tasks run, waits for events left out. Passes everything through.
// Where tasks only issue work, a task lasts from its issue, or the end of the one before, until its work has ended.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "offload/stream.h"

namespace transload {

class BusyStream final : public Stream {
 public:
  /// `issues`: tasks issue work to a device.
  BusyStream(Stream& inner, bool issues) : inner_(inner), issues_(issues) {}
  void wait(Event event) override { inner_.wait(event); }
  Event record() override { return inner_.record(); }
  void synchronize() override { inner_.synchronize(); }
  bool is_inline() const override { return inner_.is_inline(); }

  /// Of all tasks that have ended.
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

 protected:
  void submit(Task task) override {
    if (issues_) return submit_issue(std::move(task));
    inner_.launch([this] { began_ns_ = now_ns(); });
    inner_.launch(std::move(task));
    inner_.launch([this] { busy_ns_.fetch_add(now_ns() - began_ns_, std::memory_order_relaxed); });
  }
  void submit_after(Task task) override { inner_.after(std::move(task)); }

 private:
  void submit_issue(Task task) {
    const std::size_t i = issued_++ % began_.size();
    inner_.launch([this, i] { began_[i].store(now_ns(), std::memory_order_relaxed); });
    inner_.launch(std::move(task));
    inner_.after([this, i] {
      const std::uint64_t end = now_ns(), begin = began_[i].load(std::memory_order_relaxed);
      busy_ns_.fetch_add(end - std::min(end, std::max(begin, ended_ns_)), std::memory_order_relaxed);
      ended_ns_ = end;
    });
  }
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
  Stream& inner_;
  const bool issues_;
  std::uint64_t began_ns_ = 0;                            // touched by tasks alone, in the stream's order
  std::array<std::atomic<std::uint64_t>, 4096> began_{};  // more than a stream holds
  std::uint64_t issued_ = 0, ended_ns_ = 0;
  std::atomic<std::uint64_t> busy_ns_{0};
};

}  // namespace transload
