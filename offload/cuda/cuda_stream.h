// CudaStream: a CUDA stream as a Stream. Two threads of its own:
//   issue     runs what is launched: it waits for host events and hands kernels and copies to the device
//   complete  waits for the CUDA event behind each piece of host work (after), then runs it
// So nothing is polled, host work may call CUDA, and the device's errors reach whoever waits: the first one is kept,
// later tasks are skipped. Events of CUDA are taken from a ring made at construction; a full ring is back-pressure.
//
// Times of tasks come from CUDA's events while the device's clock is on (one more event a task), else from the host's
// clock: from when the task was issued, or the work before it had ended, until its end was seen.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "offload/cuda/device_clock.h"
#include "offload/stream.h"

namespace transload::cuda {

class CudaStream final : public Stream {
 public:
  /// `name` for messages; `device`: ordinal, made current on both threads. `clock` outlives the stream.
  CudaStream(std::string name, int device, std::size_t capacity, DeviceClock& clock);
  ~CudaStream() override;  ///< drains

  cudaStream_t get() const { return handles_.stream; }
  using Stream::name;
  const std::string& name() const { return name_; }

  void wait(Event event) override;
  Event record() override;
  void synchronize() override;
  bool is_inline() const override { return false; }

 protected:
  void submit(Task task) override;
  void submit_after(Task task) override;
  void submit_timed(Task task, TaskTimes* times, Task end) override;

 private:
  struct Slot {
    Task task;
    TaskTimes* times = nullptr;
    bool by_events = false;
    bool taken = false;
  };
  /// CUDA's handles; destroyed after the threads that use them have ended.
  struct Handles {
    Handles(const std::string& name, std::size_t events);
    Handles(const Handles&) = delete;
    ~Handles();
    void create(const std::string& name, std::size_t events_wanted);
    void destroy();
    cudaStream_t stream = nullptr;
    std::vector<cudaEvent_t> begins, events;  ///< by slot: before a timed task, and after all work
  };
  class Marker;
  std::size_t take_slot(Task task, TaskTimes* times);
  void note_begin(std::size_t slot);
  void note_end(std::size_t slot);
  void give_back(std::size_t slot);

  const std::string name_;
  const Handles handles_;
  DeviceClock& clock_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::atomic<std::uint32_t> ended_{0};  ///< pieces of host work that have run or been given up
  std::uint32_t issued_ = 0;             ///< guarded by mutex_
  QueueStream complete_, issue_;         // issue_ ends first
};

}  // namespace transload::cuda
