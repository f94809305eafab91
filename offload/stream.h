// Streams: in-order queues of work, as on a GPU. launch() issues work: on streams of the host a task begins when the
// one before it has ended, on a GPU's it hands kernels and copies to the device, which runs them in order. after() is
// host work that begins when all work before it has ended.
//
//   InlineStream  runs a task at once on the calling thread (the cpu device: the processor computes where bytes are).
//   QueueStream   a thread of its own and a bounded ring of tasks (the emulated device). launch() waits, visibly,
//                 when the ring is full; nothing is allocated after construction.
//   NullStream    drops tasks (dry run).
//
// Tasks are callables of at most Task::kCapacity bytes, copied in; they must not throw past the queue: the first
// exception is kept, later tasks are skipped (their destructors run on the stream's thread), synchronize() rethrows it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/lane.h"

namespace transload {

/// A callable in place; move-only by construction into the ring.
class Task {
 public:
  static constexpr std::size_t kCapacity = 480;
  Task() = default;
  template <class Fn>
  requires(!std::is_same_v<std::decay_t<Fn>, Task>) explicit Task(Fn&& fn) {
    using F = std::decay_t<Fn>;
    static_assert(sizeof(F) <= kCapacity && alignof(F) <= 16);
    ::new (static_cast<void*>(bytes_)) F(std::forward<Fn>(fn));
    run_ = [](void* p) { (*static_cast<F*>(p))(); };
    destroy_ = [](void* p) { static_cast<F*>(p)->~F(); };
    move_ = [](void* from, void* to) {
      ::new (to) F(std::move(*static_cast<F*>(from)));
      static_cast<F*>(from)->~F();
    };
  }
  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    reset();
    take(other);
    return *this;
  }
  ~Task() { reset(); }
  void operator()() { run_(bytes_); }

 private:
  void reset() {
    if (destroy_ != nullptr) destroy_(bytes_);
    run_ = nullptr;
    destroy_ = nullptr;
  }
  void take(Task& other) {
    if (other.destroy_ == nullptr) return;
    other.move_(other.bytes_, bytes_);
    run_ = other.run_;
    destroy_ = other.destroy_;
    move_ = other.move_;
    other.destroy_ = nullptr;
    other.run_ = nullptr;
  }
  alignas(16) std::byte bytes_[kCapacity];
  void (*run_)(void*) = nullptr;
  void (*destroy_)(void*) = nullptr;
  void (*move_)(void*, void*) = nullptr;
};

/// When a task's work began and ended, on the host's steady clock.
struct TaskTimes {
  std::uint64_t begin_ns = 0, end_ns = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  template <class Fn>
  void launch(Fn&& fn) {
    submit(Task(std::forward<Fn>(fn)));
  }
  template <class Fn>
  void after(Fn&& fn) {
    submit_after(Task(std::forward<Fn>(fn)));
  }
  /// launch(fn), then after(end); before `end` runs, `times` says when fn's work began and ended. It lives until then.
  template <class Fn, class End>
  void launch_timed(Fn&& fn, TaskTimes* times, End&& end) {
    submit_timed(Task(std::forward<Fn>(fn)), times, Task(std::forward<End>(end)));
  }
  /// For the record: the operation that tasks from now on are part of, and of which layer or chunk. The text lives as
  /// long as the program.
  virtual void name(const char* operation, std::int64_t index = -1) {}
  /// For the record: what the next synchronize() waits for.
  virtual void waits_for(WaitCause cause) {}
  /// The stream that tasks are issued to where this one passes them on.
  virtual Stream& underlying() { return *this; }
  /// Later tasks begin only when `event` is done.
  virtual void wait(Event event) = 0;
  /// Done when everything launched so far has ended.
  virtual Event record() = 0;
  /// Returns when everything launched so far has ended; rethrows the first error of a task.
  virtual void synchronize() = 0;
  /// True: tasks run inside launch() on the calling thread.
  virtual bool is_inline() const = 0;

 protected:
  virtual void submit(Task task) = 0;
  virtual void submit_after(Task task) { submit(std::move(task)); }
  virtual void submit_timed(Task task, TaskTimes* times, Task end) {
    submit(Task([times] { times->begin_ns = host_clock_ns(); }));
    submit(std::move(task));
    submit(Task([times] { times->end_ns = host_clock_ns(); }));
    submit(std::move(end));
  }
};

class InlineStream final : public Stream {
 public:
  void wait(Event event) override { event.wait(); }
  Event record() override { return {}; }
  void synchronize() override {}
  bool is_inline() const override { return true; }

 protected:
  void submit(Task task) override { task(); }
  void submit_timed(Task task, TaskTimes* times, Task end) override {
    times->begin_ns = host_clock_ns();
    task();
    times->end_ns = host_clock_ns();
    end();
  }
};

class NullStream final : public Stream {
 public:
  void wait(Event) override {}
  Event record() override { return {}; }
  void synchronize() override {}
  bool is_inline() const override { return true; }

 protected:
  void submit(Task) override {}
  void submit_timed(Task, TaskTimes*, Task) override {}
};

class QueueStream final : public Stream {
 public:
  explicit QueueStream(std::size_t capacity = 1024);
  ~QueueStream() override;  ///< drains
  void wait(Event event) override;
  Event record() override;
  void synchronize() override;
  bool is_inline() const override { return false; }

 protected:
  void submit(Task task) override { put(std::move(task), nullptr); }
  void submit_timed(Task task, TaskTimes* times, Task end) override;

 private:
  struct Entry {
    Task task;
    TaskTimes* times = nullptr;
    void run();
  };
  void put(Task task, TaskTimes* times);
  void run();
  void rethrow_locked();
  std::vector<Entry> ring_;
  std::size_t head_ = 0, tail_ = 0;  // tasks [head_, tail_) wait or run
  bool stop_ = false;
  std::exception_ptr error_;
  std::atomic<std::uint32_t> completed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace transload
