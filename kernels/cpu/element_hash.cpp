#include "kernels/cpu/element_hash.h"

#include <cstring>

namespace transload::kernels {
namespace {

std::uint64_t mixed(std::uint64_t position, std::uint16_t element) {
  std::uint64_t z = (position << 16 | element) + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

}  // namespace

std::uint64_t element_hash(const void* data, std::size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(data);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / 2; ++i) {
    std::uint16_t element;
    std::memcpy(&element, at + 2 * i, 2);
    sum += mixed(i, element);
  }
  return sum == 0 ? 1 : sum;
}

}  // namespace transload::kernels
