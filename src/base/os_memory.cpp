#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/os.h"
#include "base/size.h"

namespace transload::os {

void give_back_pages(std::byte* data, std::uint64_t bytes) { ::madvise(data, bytes, MADV_DONTNEED); }

Memory::Memory(std::uint64_t bytes, bool populate) : bytes_(bytes) {
  if (bytes == 0) return;
  constexpr std::uint64_t kHuge = 2 * MiB;
  const std::uint64_t usable = round_up(bytes, kHuge);
  mapped_bytes_ = usable + kHuge;  // room to move the start to a multiple of 2 MiB
  const auto said = intercept({OpKind::map, "memory", 0, usable});
  void* mapped = said && *said < 0
                     ? MAP_FAILED
                     : ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    const int error = said && *said < 0 ? static_cast<int>(-*said) : errno;
    throw IoError({"mmap", "memory", "", 0, usable, 0, error, "Give a smaller budget or free memory."});
  }
  mapped_ = mapped;
  data_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(mapped), kHuge));
  if (::madvise(data_, usable, MADV_HUGEPAGE) != 0) refusal_ = std::strerror(errno);
  if (!populate) return;
  for (std::uint64_t at = 0; at < bytes; at += 4096) *reinterpret_cast<volatile std::byte*>(data_ + at) = std::byte{0};
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      refusal_(std::move(other.refusal_)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(refusal_, other.refusal_);
  return *this;
}

Memory::~Memory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

}  // namespace transload::os
