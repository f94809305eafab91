// A CUDA runtime that is not there: streams are queues with threads of their own and seeded random delays, copies
// happen later, device memory cannot be touched by the host except while the device works. For tests only.
//
// What it finds:
//  - the host touching device memory: a segmentation fault at the touch (pages are protected unless a kernel or copy
//    runs; delays make it likely that none does);
//  - use of memory after it was given back, and of what was never written: freed and new memory is full of 0xCB;
//  - a copy beyond an allocation, a destroyed stream or event, memory registered twice: the runtime's own errors.
// Errors are sticky where the runtime's are. Threading: as the runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace stand_in {

struct Settings {
  int devices = 1;                          ///< 0: cudaErrorNoDevice; −1: no driver
  std::uint64_t device_bytes = 256u << 20;  ///< of each
  std::uint64_t pinned_bytes = UINT64_MAX;  ///< more is refused
  std::uint64_t seed = 0;                   ///< of delays
  int most_delay_us = 50;                   ///< before each piece of a stream's work; 0: none
};
/// Only while no stream lives and no memory is taken. Clears errors and faults.
void reset(const Settings& settings);

/// From now on the nth call (from 1) that `name` is part of the name of fails with `error`; sticky: all later calls
/// too, as after a fault of a kernel. n = 0: none.
void fail_call(const std::string& name, std::uint64_t nth, cudaError_t error, bool sticky = false);
/// Whether that call has not come: how often some are made depends on time.
bool fault_waits();
/// Calls so far, by name, since reset.
std::vector<std::pair<std::string, std::uint64_t>> calls();

/// Puts work of the device (a kernel) into a stream; it may touch device memory. An exception of the work is the
/// device's end (cudaErrorLaunchFailure, sticky) and kept for failure(). Without a stream the work runs at once, on the
/// calling thread, and what it throws is the caller's: for tests of kernels alone, whose arrays are host memory.
cudaError_t enqueue(cudaStream_t stream, const char* kernel, std::function<void()> work);

/// Counts a call of another library's, and says what it should answer.
cudaError_t count_call(const char* name);
/// What the first kernel that failed had to say.
std::string failure();
/// Work that came without a stream since reset: none in the product.
std::uint64_t without_stream();

struct Live {
  std::uint64_t streams = 0, events = 0, device_bytes = 0, pinned_bytes = 0;
};
Live live();  ///< what was taken and not given back

}  // namespace stand_in
