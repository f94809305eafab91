#include "offload/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/size.h"

namespace transload {

Arena::Arena(std::uint64_t bytes, bool populate) : mapping_bytes_(bytes + 2 * MiB), bytes_(bytes) {
  void* p = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw BudgetError(
        fmt::format("The system refused {} of memory for an arena: {}", format_size(bytes), std::strerror(errno)),
        bytes, 0);
  mapping_ = static_cast<std::byte*>(p);
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  base_ = mapping_ + (round_up(address, 2 * MiB) - address);
  // A small arena gains nothing from huge pages and would be rounded up to them.
  if (bytes >= 4 * MiB && madvise(base_, bytes / (2 * MiB) * (2 * MiB), MADV_HUGEPAGE) != 0)
    reason_ = std::strerror(errno);
  if (populate)
    for (std::uint64_t at = 0; at < bytes; at += 4096) base_[at] = std::byte{0};
}

Arena::~Arena() { munmap(mapping_, mapping_bytes_); }

}  // namespace transload
