// Where the time of one step went: every instant of it belongs to exactly one part, so the parts add up to the step.
//
// A processor at work comes first: computation, then updates. While none works, the wait that is open says why, and the
// link that is busy behind that wait is what the step waits for (room in host memory waits for writes to NVMe, a block
// on its way to the device that is still read from NVMe waits for NVMe). What is left is between: the issuing thread's
// own work, and waits behind which nothing can be seen.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "report/run_model.h"

namespace transload::report {

enum class Part : std::uint8_t {
  computation,
  update,
  nvme_read,
  nvme_write,
  host_to_device,
  device_to_host,
  collective,
  device_room,  ///< waiting for room there, with no link at work that would make it
  host_room,
  verdict,
  between,
};
inline constexpr int kParts = 11;
const char* key_of(Part part);    ///< "nvme_read"
const char* title_of(Part part);  ///< "reading from NVMe"

struct Attribution {
  std::array<std::int64_t, kParts> ns{};
  std::int64_t wall_ns = 0;  ///< the sum of ns
  /// Of each link: at work, and at work while a processor was, too.
  std::array<std::int64_t, kLinks> busy_ns{}, hidden_ns{};
  std::int64_t of(Part part) const { return ns[static_cast<std::size_t>(part)]; }
  double share(Part part) const {
    return wall_ns > 0 ? static_cast<double>(of(part)) / static_cast<double>(wall_ns) : 0;
  }
  /// What binds the step: computation, updates or the work between where they take more than all waits together, else
  /// what is waited for most.
  Part cause() const;
};

Attribution attribute(const ShownStep& step);

}  // namespace transload::report
