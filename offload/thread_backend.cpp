#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/io_backend.h"

namespace transload {
namespace {

class ThreadBackend final : public IoBackend {
 public:
  explicit ThreadBackend(int depth) {
    waiting_.reserve(static_cast<std::size_t>(depth));
    finished_.reserve(static_cast<std::size_t>(depth));
    for (int i = 0; i < depth; ++i) workers_.emplace_back([this] { work(); });
  }

  ~ThreadBackend() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_there_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void start(IoRequest* request) override {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(request);
    }
    work_there_.notify_one();
  }

  std::size_t wait(bool block, std::span<IoRequest*> finished) override {
    std::unique_lock lock(mutex_);
    if (block) result_there_.wait(lock, [this] { return woken_ || !finished_.empty(); });
    woken_ = false;
    std::size_t n = 0;
    while (n < finished.size() && !finished_.empty()) {
      finished[n++] = finished_.back();
      finished_.pop_back();
    }
    return n;
  }

  void wake() override {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    result_there_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      IoRequest* request = waiting_.front();
      waiting_.erase(waiting_.begin());  // first come, first served; the list is as short as the queue is deep
      lock.unlock();
      request->result = request->write ? request->file->write(request->pieces, request->offset)
                                       : request->file->read(request->pieces, request->offset);
      lock.lock();
      finished_.push_back(request);
      result_there_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_there_, result_there_;
  std::vector<IoRequest*> waiting_, finished_;
  bool stop_ = false, woken_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<IoBackend> make_thread_backend(int depth) { return std::make_unique<ThreadBackend>(depth); }

}  // namespace transload
