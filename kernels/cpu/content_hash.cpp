#include "kernels/cpu/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace transload::kernels {

std::uint64_t content_hash(const void* data, std::size_t bytes) {
  const std::uint64_t hash = XXH3_64bits(data, bytes);
  return hash == 0 ? 1 : hash;
}

}  // namespace transload::kernels
