#include "offload/checksum.h"

// The library's plain functions are built for the least processor, a third as fast as its AVX2 and AVX-512 ones; with
// this header the same names choose by the processor at hand.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <new>
#include <utility>

namespace transload {

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  reset();
}
Checksum::Checksum(Checksum&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
Checksum::~Checksum() { XXH3_freeState(state_); }

void Checksum::reset() { XXH3_64bits_reset(state_); }
void Checksum::update(const void* data, std::size_t bytes) { XXH3_64bits_update(state_, data, bytes); }
std::uint64_t Checksum::digest() const { return XXH3_64bits_digest(state_); }

}  // namespace transload
