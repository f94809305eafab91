#include "offload/cuda/cuda_stream.h"

#include <utility>

#include "offload/cuda/cuda_error.h"

namespace transload::cuda {

/// Host work on its way through both threads. Ends once, run or given up, and then its slot is free.
class CudaStream::Marker {
 public:
  Marker(CudaStream* stream, std::size_t slot) : stream_(stream), slot_(slot) {}
  Marker(Marker&& o) noexcept : stream_(std::exchange(o.stream_, nullptr)), slot_(o.slot_) {}
  Marker(const Marker&) = delete;
  Marker& operator=(Marker&&) = delete;
  ~Marker() {
    if (stream_ == nullptr) return;
    // Given up: what host work stands for may be in use until the device has ended, or is known to have failed.
    if (!ran_) cudaStreamSynchronize(stream_->get());
    stream_->give_back(slot_);
  }
  /// On the issuing thread: what was issued so far gets an event; the rest is the completing thread's.
  void issue() {
    check(cudaEventRecord(stream_->handles_.events[slot_], stream_->get()), "cudaEventRecord", stream_->name_);
    CudaStream& stream = *stream_;
    stream.complete_.launch([marker = std::move(*this)]() mutable { marker.complete(); });
  }
  std::size_t slot() const { return slot_; }
  void complete() {
    check(cudaEventSynchronize(stream_->handles_.events[slot_]), "cudaEventSynchronize", stream_->name_);
    stream_->note_end(slot_);
    ran_ = true;
    stream_->slots_[slot_].task();
  }

 private:
  CudaStream* stream_;
  std::size_t slot_;
  bool ran_ = false;
};

CudaStream::Handles::Handles(const std::string& name, std::size_t count) {
  try {
    create(name, count);
  } catch (...) {
    destroy();
    throw;
  }
}

void CudaStream::Handles::create(const std::string& name, std::size_t count) {
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", name);
  for (std::vector<cudaEvent_t>* all : {&begins, &events}) {
    all->reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "cudaEventCreateWithFlags", name);
      all->push_back(event);
    }
  }
}

CudaStream::Handles::~Handles() { destroy(); }

void CudaStream::Handles::destroy() {
  for (const std::vector<cudaEvent_t>* all : {&begins, &events})
    for (const cudaEvent_t event : *all) cudaEventDestroy(event);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

CudaStream::CudaStream(std::string name, int device, std::size_t capacity, DeviceClock& clock)
    : name_(std::move(name)),
      handles_(name_, capacity),
      clock_(clock),
      slots_(capacity),
      complete_(capacity),
      issue_(4 * capacity) {
  for (QueueStream* thread : {&issue_, &complete_}) {
    thread->launch([this, device] { check(cudaSetDevice(device), "cudaSetDevice", name_); });
    thread->synchronize();  // a failure is the constructor's
  }
}

CudaStream::~CudaStream() = default;

std::size_t CudaStream::take_slot(Task task, TaskTimes* times) {
  std::unique_lock lock(mutex_);
  for (;;) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].taken) continue;
      slots_[i].task = std::move(task);
      slots_[i].times = times;
      slots_[i].by_events = times != nullptr && clock_.on();
      slots_[i].taken = true;
      ++issued_;
      return i;
    }
    freed_.wait(lock);
  }
}

void CudaStream::give_back(std::size_t slot) {
  slots_[slot].task = Task();  // its destructor may be what others wait for: before the slot counts as ended
  {
    std::lock_guard lock(mutex_);
    slots_[slot].taken = false;
  }
  freed_.notify_all();
  ended_.fetch_add(1, std::memory_order_release);
  ended_.notify_all();
}

void CudaStream::submit(Task task) { issue_.launch(std::move(task)); }

void CudaStream::submit_after(Task task) {
  const std::size_t slot = take_slot(std::move(task), nullptr);
  issue_.launch([marker = Marker(this, slot)]() mutable { marker.issue(); });
}

void CudaStream::submit_timed(Task task, TaskTimes* times, Task end) {
  Marker marker(this, take_slot(std::move(end), times));
  issue_.launch([this, slot = marker.slot()] { note_begin(slot); });
  issue_.launch(std::move(task));
  issue_.launch([marker = std::move(marker)]() mutable { marker.issue(); });
}

void CudaStream::note_begin(std::size_t slot) {
  if (slots_[slot].by_events)
    check(cudaEventRecord(handles_.begins[slot], get()), "cudaEventRecord", name_);
  else
    slots_[slot].times->begin_ns = host_clock_ns();
}

void CudaStream::note_end(std::size_t slot) {
  const Slot& of = slots_[slot];
  if (of.times == nullptr) return;
  if (of.by_events) of.times->begin_ns = clock_.host_ns(handles_.begins[slot]);
  of.times->end_ns = of.by_events ? clock_.host_ns(handles_.events[slot]) : host_clock_ns();
}

void CudaStream::wait(Event event) { issue_.wait(event); }

Event CudaStream::record() {
  after([] {});
  std::lock_guard lock(mutex_);
  return {&ended_, issued_};
}

void CudaStream::synchronize() {
  const Event end = record();
  end.wait();
  issue_.synchronize();
  complete_.synchronize();
}

}  // namespace transload::cuda
