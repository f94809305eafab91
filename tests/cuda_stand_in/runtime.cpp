// How tests set the stand-in up and ask it, and what a device says of itself.
#include "runtime.h"

#include <cstring>

#include "state.h"

namespace stand_in {
namespace {

std::uint64_t total(const std::map<std::uintptr_t, Allocation>& ranges) {
  std::uint64_t bytes = 0;
  for (const auto& [at, allocation] : ranges) bytes += allocation.bytes;
  return bytes;
}

void kernel_failed(const char* what) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  if (r.failure.empty()) r.failure = what;
  r.sticky = cudaErrorLaunchFailure;
}

}  // namespace

Runtime& runtime() {
  static Runtime r;
  return r;
}

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

Settings settings() {
  std::lock_guard lock(runtime().mutex);
  return runtime().settings;
}

cudaError_t sticky() {
  std::lock_guard lock(runtime().mutex);
  return runtime().sticky;
}

void reset(const Settings& wanted) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.settings = wanted;
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

using namespace stand_in;

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER("cudaGetDeviceCount");
  const int devices = settings().devices;
  if (devices < 0) return cudaErrorInsufficientDriver;  // and *count stays as it was
  *count = devices;
  return devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = settings().device_bytes;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  ENTER("cudaDeviceGetAttribute");
  *value = 0;  // of no clock
  return device < 0 || device >= settings().devices ? cudaErrorInvalidDevice : cudaSuccess;
}

namespace {
thread_local int current_device = 0;
}

cudaError_t cudaSetDevice(int device) {
  ENTER("cudaSetDevice");
  if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
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
  *all = settings().device_bytes;
  *free = *all - live().device_bytes;
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
