// What the stand-in's files share: all that the process has of CUDA, and how a call begins. Not for tests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>

#include "runtime.h"

struct CUevent_st {
  std::uint64_t recorded = 0, ended = 0;  // guarded by the runtime's mutex
  unsigned flags = 0;
  std::chrono::steady_clock::time_point at;  // of the last end
};

/// A queue with a thread of its own while it lives.
struct CUstream_st {
  explicit CUstream_st(std::uint64_t seed);
  ~CUstream_st();
  void put(std::function<void()> work);
  void drain();
  void run();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::uint64_t issued = 0, ended = 0;
  bool stop = false, left = false;
  std::mt19937_64 random;
};

namespace stand_in {

struct Allocation {
  std::size_t bytes = 0, mapped = 0;
};

/// All that the process has of CUDA.
struct Runtime {
  std::mutex mutex;
  std::condition_variable changed;
  Settings settings;  // a call without the lock takes settings()
  std::map<std::uintptr_t, Allocation> device, pinned;
  std::map<std::uintptr_t, std::size_t> registered;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  cudaError_t sticky = cudaSuccess;
  std::string fault_name;
  std::uint64_t fault_in = 0;
  cudaError_t fault = cudaSuccess;
  bool fault_sticky = false;
  std::map<std::string, std::uint64_t> counts;
  std::uint64_t streams_made = 0;
  std::string failure;
  std::atomic<std::uint64_t> without_stream{0};

  std::mutex pages;
  int working = 0;
};

Runtime& runtime();

/// While one lives device memory can be touched.
class DeviceWorks {
 public:
  DeviceWorks();
  ~DeviceWorks();
};

/// The answer of a call before it does anything.
cudaError_t enter(const char* name);
Settings settings();
cudaError_t sticky();
bool alive(cudaStream_t stream);
bool alive(cudaEvent_t event);
/// Returns when all streams have done what they were given, as cudaFree and cudaFreeHost do.
void drain_all();

}  // namespace stand_in

#define ENTER(name) \
  if (const cudaError_t entered = ::stand_in::enter(name); entered != cudaSuccess) return entered
