#include <cstring>

#include "comm/communicator.h"

namespace transload {

Event OneProcess::all_gather(const std::byte* in, std::uint64_t bytes, std::byte* out) {
  if (in != out) std::memcpy(out, in, bytes);
  return {};
}

Event OneProcess::reduce_scatter(const float* in, std::uint64_t elements, float* out) {
  if (in != out) std::memcpy(out, in, elements * sizeof(float));
  return {};
}

}  // namespace transload
