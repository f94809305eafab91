// Streams, each with a thread while it lives, and events.
#include <thread>
#include <vector>

#include "state.h"

namespace stand_in {
namespace {

/// Threads that outlive the streams that borrow them: a thread's fibers, with their stacks, are made once.
class Workers {
 public:
  ~Workers() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void start(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
      if (jobs_.size() > idle_) threads_.emplace_back([this] { run(); });
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool stop_ = false;
};

Workers& workers() {
  static Workers w;
  return w;
}

/// Held while a stream goes, and while all are waited for: threads of several ranks do both at once.
std::mutex& streams_go() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

bool alive(cudaStream_t stream) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.streams.count(stream) == 1;
}
bool alive(cudaEvent_t event) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.events.count(event) == 1;
}

void drain_all() {
  Runtime& r = runtime();
  const std::lock_guard none_goes(streams_go());
  std::vector<CUstream_st*> streams;
  {
    std::lock_guard lock(r.mutex);
    streams.assign(r.streams.begin(), r.streams.end());
  }
  for (CUstream_st* stream : streams) stream->drain();
}

}  // namespace stand_in

using namespace stand_in;

CUstream_st::CUstream_st(std::uint64_t seed) : random(seed) {
  workers().start([this] { run(); });
}
CUstream_st::~CUstream_st() {
  std::unique_lock lock(mutex);
  stop = true;
  changed.notify_all();
  changed.wait(lock, [&] { return left; });
}
void CUstream_st::put(std::function<void()> work) {
  {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    ++issued;
  }
  changed.notify_all();
}
void CUstream_st::drain() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == issued; });
}
void CUstream_st::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stop || !queue.empty(); });
    if (queue.empty()) break;
    const std::function<void()> work = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    if (const int most = settings().most_delay_us; most > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
    work();
    lock.lock();
    ++ended;
    changed.notify_all();
  }
  left = true;
  changed.notify_all();  // under the lock: behind it this object may be gone
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  ENTER("cudaStreamCreateWithFlags");
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  *stream = new CUstream_st(r.settings.seed * 1000003 + r.streams_made++);
  r.streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t entered = enter("cudaStreamDestroy");
  const std::lock_guard none_waits(streams_go());
  if (!alive(stream)) return cudaErrorInvalidResourceHandle;
  {
    std::lock_guard lock(runtime().mutex);
    runtime().streams.erase(stream);
  }
  delete stream;
  return entered;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t entered = enter("cudaStreamSynchronize");
  if (!alive(stream)) return cudaErrorInvalidResourceHandle;
  stream->drain();
  return entered != cudaSuccess ? entered : sticky();
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER("cudaEventCreateWithFlags");
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  *event = new CUevent_st;
  (*event)->flags = flags;
  r.events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t entered = enter("cudaEventDestroy");
  Runtime& r = runtime();
  std::unique_lock lock(r.mutex);
  if (r.events.erase(event) != 1) return cudaErrorInvalidResourceHandle;
  r.changed.wait(lock, [&] { return event->ended == event->recorded; });
  delete event;
  return entered;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER("cudaEventRecord");
  if (!alive(event) || !alive(stream)) return cudaErrorInvalidResourceHandle;
  {
    std::lock_guard lock(runtime().mutex);
    ++event->recorded;
  }
  stream->put([event] {
    std::lock_guard lock(runtime().mutex);
    ++event->ended;
    event->at = std::chrono::steady_clock::now();
    runtime().changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER("cudaEventSynchronize");
  if (!alive(event)) return cudaErrorInvalidResourceHandle;
  Runtime& r = runtime();
  std::unique_lock lock(r.mutex);
  const std::uint64_t wanted = event->recorded;
  r.changed.wait(lock, [&] { return event->ended >= wanted; });
  return r.sticky;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  ENTER("cudaEventElapsedTime");
  if (!alive(start) || !alive(end)) return cudaErrorInvalidResourceHandle;
  std::lock_guard lock(runtime().mutex);
  for (const cudaEvent_t event : {start, end}) {
    if (event->recorded == 0 || (event->flags & cudaEventDisableTiming) != 0) return cudaErrorInvalidResourceHandle;
    if (event->ended != event->recorded) return cudaErrorNotReady;
  }
  *ms = std::chrono::duration<float, std::milli>(end->at - start->at).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER("cudaStreamWaitEvent");
  if (!alive(event) || !alive(stream)) return cudaErrorInvalidResourceHandle;
  std::uint64_t wanted;
  {
    std::lock_guard lock(runtime().mutex);
    wanted = event->recorded;
  }
  stream->put([event, wanted] {
    std::unique_lock lock(runtime().mutex);
    runtime().changed.wait(lock, [&] { return event->ended >= wanted; });
  });
  return cudaSuccess;
}
