#include "runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

struct CUevent_st {
  std::uint64_t recorded = 0, ended = 0;  // guarded by the runtime's mutex
  cudaError_t error = cudaSuccess;
  unsigned flags = 0;
  std::chrono::steady_clock::time_point at;  // of the last end
};

namespace stand_in {
namespace {

struct Allocation {
  std::size_t bytes = 0, mapped = 0;
};

/// All that the process has of CUDA.
struct Runtime {
  std::mutex mutex;
  std::condition_variable changed;
  Settings settings;
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

Runtime& runtime() {
  static Runtime r;
  return r;
}

constexpr unsigned char kPoison = 0xCB;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 << 20;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void protect_all(int how) {
  Runtime& r = runtime();
  for (const auto& [at, allocation] : r.device) ::mprotect(reinterpret_cast<void*>(at), allocation.mapped, how);
}

/// While one lives device memory can be touched.
class DeviceWorks {
 public:
  DeviceWorks() {
    Runtime& r = runtime();
    std::lock_guard lock(r.pages);
    if (r.working++ == 0) protect_all(PROT_READ | PROT_WRITE);
  }
  ~DeviceWorks() {
    Runtime& r = runtime();
    std::lock_guard lock(r.pages);
    if (--r.working == 0) protect_all(PROT_NONE);
  }
};

/// The answer of a call before it does anything.
cudaError_t enter(const char* name) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  ++r.counts[name];
  if (r.fault_in > 0 && std::string(name).find(r.fault_name) != std::string::npos && --r.fault_in == 0) {
    if (r.fault_sticky) r.sticky = r.fault;
    return r.fault;
  }
  return r.sticky;
}

cudaError_t sticky() {
  std::lock_guard lock(runtime().mutex);
  return runtime().sticky;
}

/// Whether [at, at + bytes) lies in one of `ranges`.
bool within(const std::map<std::uintptr_t, Allocation>& ranges, const void* at, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return false;
  --found;
  return address >= found->first && address + bytes <= found->first + found->second.bytes;
}
bool touches(const std::map<std::uintptr_t, Allocation>& ranges, const void* at, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto after = ranges.lower_bound(address + bytes);
  if (after == ranges.begin()) return false;
  --after;
  return address < after->first + after->second.bytes;
}

std::uint64_t total(const std::map<std::uintptr_t, Allocation>& ranges) {
  std::uint64_t bytes = 0;
  for (const auto& [at, allocation] : ranges) bytes += allocation.bytes;
  return bytes;
}

/// Large ones in huge pages, where there are any: protecting them, before and after each piece of work, is what costs.
void* map(std::size_t bytes) {
  const std::size_t spare = bytes < kHugePage ? 0 : kHugePage;
  void* const at = ::mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || spare == 0) return at;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::size_t before = (kHugePage - address % kHugePage) % kHugePage;
  auto* const begin = static_cast<std::byte*>(at) + before;
  if (before > 0) ::munmap(at, before);
  ::munmap(begin + bytes, spare - before);
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  return begin;
}

cudaError_t take(std::map<std::uintptr_t, Allocation>& ranges, void** pointer, std::size_t bytes, int protection) {
  const std::size_t mapped = whole_pages(bytes == 0 ? 1 : bytes);
  void* const at = map(mapped);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::memset(at, kPoison, mapped);
  Runtime& r = runtime();
  std::scoped_lock lock(r.mutex, r.pages);
  if (r.working == 0) ::mprotect(at, mapped, protection);
  ranges[reinterpret_cast<std::uintptr_t>(at)] = {bytes, mapped};
  *pointer = at;
  return cudaSuccess;
}

cudaError_t give(std::map<std::uintptr_t, Allocation>& ranges, void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  Runtime& r = runtime();
  std::scoped_lock lock(r.mutex, r.pages);
  const auto found = ranges.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == ranges.end()) return cudaErrorInvalidValue;
  // Kept mapped and untouchable: whoever uses it afterwards is found.
  ::mprotect(pointer, found->second.mapped, PROT_NONE);
  ::madvise(pointer, found->second.mapped, MADV_DONTNEED);
  ranges.erase(found);
  return cudaSuccess;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

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

}  // namespace
}  // namespace stand_in

/// A queue with a thread of its own while it lives.
struct CUstream_st {
  explicit CUstream_st(std::uint64_t seed) : random(seed) {
    workers().start([this] { run(); });
  }
  ~CUstream_st() {
    std::unique_lock lock(mutex);
    stop = true;
    changed.notify_all();
    changed.wait(lock, [&] { return left; });
  }
  void put(std::function<void()> work) {
    {
      std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
      ++issued;
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == issued; });
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) break;
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      if (const int most = runtime().settings.most_delay_us; most > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
      work();
      lock.lock();
      ++ended;
      changed.notify_all();
    }
    left = true;
    changed.notify_all();  // under the lock: behind it this object may be gone
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::uint64_t issued = 0, ended = 0;
  bool stop = false, left = false;
  std::mt19937_64 random;
};

namespace stand_in {
namespace {

bool alive(cudaStream_t stream) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.streams.count(stream) == 1;
}
/// As the runtime's cudaFree and cudaFreeHost do.
/// Held while a stream goes, and while all are waited for: threads of several ranks do both at once.
std::mutex& streams_go() {
  static std::mutex mutex;
  return mutex;
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

void kernel_failed(const char* what) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  if (r.failure.empty()) r.failure = what;
  r.sticky = cudaErrorLaunchFailure;
}

bool alive(cudaEvent_t event) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.events.count(event) == 1;
}

}  // namespace

void reset(const Settings& settings) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.settings = settings;
  r.sticky = r.fault = cudaSuccess;
  r.fault_in = 0;
  r.counts.clear();
  r.streams_made = 0;
  r.failure.clear();
  r.without_stream = 0;
}

void fail_call(const std::string& name, std::uint64_t nth, cudaError_t error, bool sticky) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.fault_name = name;
  r.fault_in = nth;
  r.fault = error;
  r.fault_sticky = sticky;
}

bool fault_waits() {
  std::lock_guard lock(runtime().mutex);
  return runtime().fault_in > 0;
}

std::vector<std::pair<std::string, std::uint64_t>> calls() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return {r.counts.begin(), r.counts.end()};
}

cudaError_t enqueue(cudaStream_t stream, const char*, std::function<void()> work) {
  if (stream == nullptr) {
    ++runtime().without_stream;
    work();
    return cudaSuccess;
  }
  if (const cudaError_t error = enter("cudaLaunchKernel"); error != cudaSuccess) return error;
  if (!alive(stream)) return cudaErrorInvalidResourceHandle;
  stream->put([work = std::move(work)] {
    if (sticky() != cudaSuccess) return;  // a device that has failed does nothing more
    const DeviceWorks works;
    try {
      work();
    } catch (const std::exception& e) {
      kernel_failed(e.what());
    }
  });
  return cudaSuccess;
}

cudaError_t count_call(const char* name) { return enter(name); }

std::string failure() {
  std::lock_guard lock(runtime().mutex);
  return runtime().failure;
}
std::uint64_t without_stream() { return runtime().without_stream; }

Live live() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return {r.streams.size(), r.events.size(), total(r.device), total(r.pinned)};
}

}  // namespace stand_in

#define ENTER(name) \
  if (const cudaError_t entered = enter(name); entered != cudaSuccess) return entered

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER("cudaGetDeviceCount");
  const int devices = runtime().settings.devices;
  if (devices < 0) return cudaErrorInsufficientDriver;  // and *count stays as it was
  *count = devices;
  return devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= runtime().settings.devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = runtime().settings.device_bytes;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  ENTER("cudaDeviceGetAttribute");
  *value = 0;  // of no clock
  return device < 0 || device >= runtime().settings.devices ? cudaErrorInvalidDevice : cudaSuccess;
}

namespace {
thread_local int current_device = 0;
}

cudaError_t cudaSetDevice(int device) {
  ENTER("cudaSetDevice");
  if (device < 0 || device >= runtime().settings.devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  ENTER("cudaGetDevice");
  *device = current_device;
  return cudaSuccess;
}

// These cannot fail where a driver is loaded.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13020;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  ENTER("cudaMemGetInfo");
  *all = runtime().settings.device_bytes;
  *free = *all - live().device_bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  ENTER("cudaMalloc");
  if (live().device_bytes + bytes > runtime().settings.device_bytes) return cudaErrorMemoryAllocation;
  return take(runtime().device, pointer, bytes, PROT_NONE);
}
cudaError_t cudaFree(void* pointer) {
  const cudaError_t entered = enter("cudaFree");
  drain_all();
  give(runtime().device, pointer);
  return entered;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  ENTER("cudaHostAlloc");
  if (live().pinned_bytes + bytes > runtime().settings.pinned_bytes) return cudaErrorMemoryAllocation;
  return take(runtime().pinned, pointer, bytes, PROT_READ | PROT_WRITE);
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t entered = enter("cudaFreeHost");
  drain_all();
  give(runtime().pinned, pointer);
  return entered;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  ENTER("cudaHostRegister");
  if (live().pinned_bytes + bytes > runtime().settings.pinned_bytes) return cudaErrorMemoryAllocation;
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  const bool fresh = r.registered.emplace(reinterpret_cast<std::uintptr_t>(pointer), bytes).second;
  return fresh ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* pointer) {
  ENTER("cudaHostUnregister");
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.registered.erase(reinterpret_cast<std::uintptr_t>(pointer)) == 1 ? cudaSuccess : cudaErrorInvalidValue;
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

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  ENTER("cudaMemcpyAsync");
  if (!alive(stream)) return cudaErrorInvalidResourceHandle;
  Runtime& r = runtime();
  bool pageable = false;
  {
    std::lock_guard lock(r.mutex);
    for (const void* side : {static_cast<const void*>(to), from}) {
      const bool on_device = touches(r.device, side, bytes);
      if (on_device && !within(r.device, side, bytes)) return cudaErrorInvalidValue;
      bool locked = within(r.pinned, side, bytes);
      for (const auto& [at, size] : r.registered)
        locked |=
            reinterpret_cast<std::uintptr_t>(side) >= at && reinterpret_cast<std::uintptr_t>(side) + bytes <= at + size;
      pageable |= !on_device && !locked;
    }
  }
  stream->put([to, from, bytes] {
    const DeviceWorks works;
    std::memcpy(to, from, bytes);
  });
  if (pageable) stream->drain();  // the runtime stages such copies and returns when the host side is done with
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  ENTER("cudaMemsetAsync");
  if (!alive(stream)) return cudaErrorInvalidResourceHandle;
  {
    std::lock_guard lock(runtime().mutex);
    if (!within(runtime().device, to, bytes)) return cudaErrorInvalidValue;
  }
  stream->put([to, value, bytes] {
    const DeviceWorks works;
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return enter("cudaGetLastError"); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
