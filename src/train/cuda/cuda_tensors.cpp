// TensorDevice on a GPU: two streams of its own for copies, events without timing, kernels in the caller's stream.
// Handles of streams are the driver's, so a stream of another CUDA runtime in the process (PyTorch's) is as good.
#include "train/cuda/cuda_tensors.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/size.h"
#include "kernels/cuda/kernels.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/cuda_error.h"
#include "optim/tensor_device.h"

namespace transload::cuda {
namespace {

void require(cudaError_t result, const char* operation, const std::string& what) {
  if (result != cudaSuccess) throw Error(refusal(result, operation, what));
}

/// The calling thread's current device is the given one (or as it becomes) while this lives, and then as it was. It is
/// set only where it differs: setting it makes a context on that device.
class Current {
 public:
  Current() : before_(now()) {}
  explicit Current(int number) : Current() {
    if (before_ != number) require(cudaSetDevice(number), "cudaSetDevice", fmt::format("device {}", number));
  }
  ~Current() {
    int device = before_;
    if (cudaGetDevice(&device) != cudaSuccess || device != before_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;

 private:
  static int now() {
    int device = 0;
    require(cudaGetDevice(&device), "cudaGetDevice", "the current one");
    return device;
  }
  const int before_;
};

/// A stream of copies in one direction, and an event a slot.
struct CopyStream {
  explicit CopyStream(const char* stream_name) : name(stream_name) {}
  CopyStream(const CopyStream&) = delete;
  ~CopyStream() {
    for (const cudaEvent_t event : events)
      if (event != nullptr) cudaEventDestroy(event);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  void create() {
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", name);
    for (cudaEvent_t& event : events)
      require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
              "cudaEventCreateWithFlags", name);
  }
  void copy(void* to, const void* from, std::uint64_t bytes) const {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync",
            fmt::format("{}, {}", name, format_size(bytes)));
  }
  void record(std::size_t slot) const { require(cudaEventRecord(events[slot], stream), "cudaEventRecord", name); }
  void wait(cudaEvent_t event) const { require(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent", name); }
  const char* name;
  cudaStream_t stream = nullptr;
  std::array<cudaEvent_t, TensorDevice::kSlots> events{};
};

/// The only event of the caller's stream: where it was when a step began, then where it was when it ended.
class CallerEvent {
 public:
  ~CallerEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void create() {
    require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreateWithFlags", "the caller's stream");
  }
  void record(cudaStream_t stream) {
    require(cudaEventRecord(event_, stream), "cudaEventRecord", "the caller's stream");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTensors final : public TensorDevice {
 public:
  explicit CudaTensors(int number) : number_(number), device_(number) {
    for (CopyStream* stream : {&down_, &up_}) stream->create();
    caller_.create();
  }
  ~CudaTensors() override {
    for (const CopyStream* stream : {&down_, &up_}) cudaStreamSynchronize(stream->stream);
  }

  std::unique_ptr<TierMemory> host_memory(std::uint64_t bytes) override {
    const Current current(number_);
    return device_.host_memory(bytes, true);
  }
  std::string unpinned_reason() const override { return device_.unpinned_reason(); }
  std::unique_ptr<TierMemory> memory(std::uint64_t bytes) override {
    const Current current(number_);
    return device_.memory(bytes);
  }

  void begin_step(void* caller_stream) override {
    stream_ = static_cast<cudaStream_t>(caller_stream);
    order_copies();
  }
  void end_step() override {
    up_.record(0);
    require(cudaStreamWaitEvent(stream_, up_.events[0], 0), "cudaStreamWaitEvent", "the caller's stream");
    order_copies();
  }

  void to_host(void* to, const void* from, std::uint64_t bytes) override { down_.copy(to, from, bytes); }
  void to_device(void* to, const void* from, std::uint64_t bytes) override { up_.copy(to, from, bytes); }
  void zero(void* at, std::uint64_t bytes) override {
    require(cudaMemsetAsync(at, 0, bytes, up_.stream), "cudaMemsetAsync", format_size(bytes));
  }
  void begin_fetch(std::size_t slot) override { down_.wait(up_.events[slot]); }
  void end_fetch(std::size_t slot) override { down_.record(slot); }
  void wait_fetched(std::size_t slot) override {
    require(cudaEventSynchronize(down_.events[slot]), "cudaEventSynchronize", down_.name);
  }
  void sent(std::size_t slot) override { up_.record(slot); }

  void update(const DeviceUpdate& u) override {
    const Current current(number_);
    if (u.known != nullptr) kernels::cuda::forget_changed(u.run.weight, u.elements, u.known, u.run.residue, stream_);
    kernels::cuda::adamw(u.run, u.elements, u.coefficients, 1, stream_);
    if (u.known != nullptr) kernels::cuda::remember(u.run.weight, u.elements, u.known, stream_);
  }

  void settle() override {
    const cudaError_t down = cudaStreamSynchronize(down_.stream);
    const cudaError_t up = cudaStreamSynchronize(up_.stream);
    require(down, "a copy", down_.name);
    require(up, "a copy", up_.name);
  }

 private:
  /// Copies from now on come after what the caller's stream holds.
  void order_copies() {
    caller_.record(stream_);
    for (const CopyStream* stream : {&down_, &up_}) stream->wait(caller_.get());
  }

  const int number_;
  CudaDevice device_;
  CopyStream down_{"copies to the host"}, up_{"copies to the device"};
  CallerEvent caller_;
  cudaStream_t stream_ = nullptr;
};

std::string unavailable() {
  std::string reason;
  return list_devices(&reason).empty() ? "no GPU can be used here: " + reason : "";
}

std::unique_ptr<TensorDevice> open(int number) {
  const Current as_before;
  return std::make_unique<CudaTensors>(number);
}

}  // namespace

void announce_tensors() { announce_tensor_devices({.open = &open, .unavailable = &unavailable}); }

}  // namespace transload::cuda
