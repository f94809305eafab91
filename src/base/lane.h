// Lanes: where the work of a step is done, as the record and its timeline show it; and the clock that times it.
#pragma once

#include <chrono>
#include <cstdint>

namespace transload {

inline std::uint64_t host_clock_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

/// Where work is done. The first four are the links, in their order; reads and writes of NVMe overlap each other, on
/// the other lanes one span follows another.
enum class Lane : std::uint8_t { nvme_read, nvme_write, host_to_device, device_to_host, compute, host, comm, issue };
inline constexpr int kLanes = 8;
/// `comm`: collectives between ranks, waiting for the others included.
/// `issue`: the thread that issues a step's work; it waits, and has no spans.
constexpr const char* name_of(Lane lane) {
  constexpr const char* names[kLanes] = {"nvme_read", "nvme_write", "host_to_device", "device_to_host",
                                         "compute",   "host",       "comm",           "issue"};
  return names[static_cast<int>(lane)];
}

enum class WaitCause : std::uint8_t {
  room,     ///< no room in `tier` for `block`
  use,      ///< earlier work or a transfer still uses `block`
  content,  ///< `block` is on its way over `source`
  queue,    ///< a stream holds as many tasks as it can
  work,     ///< the work issued so far has to end: the next phase takes its workspace, updates read what changes
  verdict,  ///< the end of backward: all gradients are there
};
constexpr const char* name_of(WaitCause cause) {
  constexpr const char* names[] = {"room", "use", "content", "queue", "work", "verdict"};
  return names[static_cast<int>(cause)];
}

}  // namespace transload
