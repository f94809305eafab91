// The checksum of blocks: xxh3-64 over bytes that come in pieces.
// Allocates at construction only. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

struct XXH3_state_s;

namespace transload {

class Checksum {
 public:
  Checksum();
  Checksum(Checksum&& other) noexcept;
  Checksum& operator=(Checksum&&) = delete;
  ~Checksum();

  void reset();
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  XXH3_state_s* state_;
};

}  // namespace transload
