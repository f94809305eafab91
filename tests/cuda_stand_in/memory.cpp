// Memory of the device and of the host, locked or not, and what moves between them.
#include <sys/mman.h>

#include <cstring>

#include "state.h"

namespace stand_in {
namespace {

constexpr unsigned char kPoison = 0xCB;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 << 20;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void protect_all(int how) {
  Runtime& r = runtime();
  for (const auto& [at, allocation] : r.device) ::mprotect(reinterpret_cast<void*>(at), allocation.mapped, how);
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

DeviceWorks::DeviceWorks() {
  Runtime& r = runtime();
  std::lock_guard lock(r.pages);
  if (r.working++ == 0) protect_all(PROT_READ | PROT_WRITE);
}
DeviceWorks::~DeviceWorks() {
  Runtime& r = runtime();
  std::lock_guard lock(r.pages);
  if (--r.working == 0) protect_all(PROT_NONE);
}

}  // namespace stand_in

using namespace stand_in;

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  ENTER("cudaMalloc");
  if (live().device_bytes + bytes > settings().device_bytes) return cudaErrorMemoryAllocation;
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
  if (live().pinned_bytes + bytes > settings().pinned_bytes) return cudaErrorMemoryAllocation;
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
  if (live().pinned_bytes + bytes > settings().pinned_bytes) return cudaErrorMemoryAllocation;
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
