// What the CUDA benchmarks share: errors end the program, and work in one stream is timed by the device's own events.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace transload::bench {

inline void check(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s failed: %s (%d)\n", operation, cudaGetErrorString(error), static_cast<int>(error));
  std::_Exit(1);  // as it is: what lives on the device has no order to end in
}

/// A stream and two events. One thread.
class StreamTimer {
 public:
  StreamTimer() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    check(cudaEventCreate(&begin_), "creating an event");
    check(cudaEventCreate(&end_), "creating an event");
  }
  StreamTimer(const StreamTimer&) = delete;
  ~StreamTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }

  /// Of `run`, which puts work into the stream: the median of the repeats, after two that do not count.
  double median_seconds(int repeats, const char* name, const std::function<void()>& run) {
    std::vector<double> seconds;
    for (int i = -2; i < repeats; ++i) {
      check(cudaEventRecord(begin_, stream_), "recording an event");
      run();
      check(cudaEventRecord(end_, stream_), "recording an event");
      check(cudaEventSynchronize(end_), name);
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_), "reading an event");
      if (i >= 0) seconds.push_back(ms / 1e3);
    }
    const auto middle = seconds.begin() + repeats / 2;
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace transload::bench
