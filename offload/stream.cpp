#include "offload/stream.h"

namespace transload {

QueueStream::QueueStream(std::size_t capacity) : ring_(capacity), thread_([this] { run(); }) {}

QueueStream::~QueueStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void QueueStream::rethrow_locked() {
  if (error_) std::rethrow_exception(error_);
}

void QueueStream::Entry::run() {
  if (times != nullptr) times->begin_ns = host_clock_ns();
  task();
  if (times != nullptr) times->end_ns = host_clock_ns();
}

void QueueStream::submit_timed(Task task, TaskTimes* times, Task end) {
  put(std::move(task), times);
  put(std::move(end), nullptr);
}

void QueueStream::put(Task task, TaskTimes* times) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tail_ - head_ < ring_.size(); });
  Entry& entry = ring_[tail_ % ring_.size()];
  entry.task = std::move(task);
  entry.times = times;
  ++tail_;
  lock.unlock();
  changed_.notify_all();
}

void QueueStream::wait(Event event) {
  if (event.done()) return;
  launch([event] { event.wait(); });
}

Event QueueStream::record() {
  std::lock_guard lock(mutex_);
  return {&completed_, static_cast<std::uint32_t>(tail_)};
}

void QueueStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return head_ == tail_; });
  rethrow_locked();
}

void QueueStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || head_ != tail_; });
    if (head_ == tail_) return;
    {
      Entry& entry = ring_[head_ % ring_.size()];
      const bool skip = error_ != nullptr;
      lock.unlock();
      std::exception_ptr error;
      if (!skip) {
        try {
          entry.run();
        } catch (...) {
          error = std::current_exception();
          entry.task = Task();  // while the error is handled: what it gives up can tell why
        }
      }
      entry.task = Task();
      lock.lock();
      if (error && !error_) error_ = error;
    }
    ++head_;
    completed_.store(static_cast<std::uint32_t>(head_), std::memory_order_release);
    completed_.notify_all();
    changed_.notify_all();
  }
}

}  // namespace transload
