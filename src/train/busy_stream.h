// BusyStream: a stream that measures how long its tasks run, waits for events left out, and notes tasks and waits in
// the timeline. Passes everything through.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/timeline.h"
#include "offload/stream.h"

namespace transload {

class BusyStream final : public Stream {
 public:
  /// `timeline` may be null. `lane`: the processor that works.
  BusyStream(Stream& inner, Lane lane, Timeline* timeline) : inner_(inner), lane_(lane), timeline_(timeline) {}

  void wait(Event event) override {
    if (event.done()) return;
    const Wait wait{.block = event.block,
                    .lane = inner_.is_inline() ? Lane::issue : lane_,
                    .cause = event.block.valid() ? WaitCause::content : WaitCause::work,
                    .tier = event.tier,
                    .source = event.source};
    inner_.launch([this, event, wait] {
      if (event.done()) return;
      const WaitNote note(timeline_, wait);
      event.wait();
    });
  }
  Event record() override { return inner_.record(); }
  void synchronize() override {
    const WaitNote note(timeline_, {.cause = std::exchange(waits_for_, WaitCause::work)});
    inner_.synchronize();
  }
  bool is_inline() const override { return inner_.is_inline(); }
  void name(const char* operation, std::int64_t index) override {
    operation_ = operation;
    index_ = static_cast<std::int32_t>(index);
  }
  void waits_for(WaitCause cause) override { waits_for_ = cause; }
  Stream& underlying() override { return inner_.underlying(); }

  /// Of all tasks that have ended.
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

 protected:
  void submit(Task task) override {
    Work& work = works_[issued_++ % works_.size()];
    work.operation = operation_;
    work.index = index_;
    const std::uint64_t asked_ns = host_clock_ns();
    inner_.launch_timed(std::move(task), &work.times, [this, &work] { ended(work); });
    if (timeline_ == nullptr || inner_.is_inline()) return;
    if (const std::uint64_t now = host_clock_ns(); now - asked_ns > kFullNs)
      timeline_->add(Wait{.begin_ns = asked_ns, .end_ns = now, .cause = WaitCause::queue});
  }
  void submit_after(Task task) override { inner_.after(std::move(task)); }

 private:
  static constexpr std::uint64_t kFullNs = 20'000;  // issuing a task takes less

  struct Work {
    TaskTimes times;
    const char* operation = nullptr;
    std::int32_t index = -1;
  };
  /// On the stream's thread, in its order. Times of a device are rounded: a task begins no earlier than the last ended.
  void ended(const Work& work) {
    const std::uint64_t begin = std::max(work.times.begin_ns, ended_ns_);
    ended_ns_ = std::max(work.times.end_ns, begin);
    busy_ns_.fetch_add(ended_ns_ - begin, std::memory_order_relaxed);
    if (timeline_ == nullptr) return;
    timeline_->add(
        Span{.begin_ns = begin, .end_ns = ended_ns_, .name = work.operation, .index = work.index, .lane = lane_});
  }
  Stream& inner_;
  const Lane lane_;
  Timeline* const timeline_;
  const char* operation_ = "work";
  std::int32_t index_ = -1;
  WaitCause waits_for_ = WaitCause::work;
  std::array<Work, 4096> works_{};  // more than a stream holds
  std::uint64_t issued_ = 0;
  std::uint64_t ended_ns_ = 0;  // touched by tasks alone, in the stream's order
  std::atomic<std::uint64_t> busy_ns_{0};
};

}  // namespace transload
