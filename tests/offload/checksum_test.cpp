#include "offload/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace transload {

TEST_CASE("the checksum is the library's, however the bytes are cut") {
  std::mt19937_64 random(1);
  Checksum checksum;
  for (const std::size_t bytes : {0u, 1u, 16u, 128u, 240u, 241u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 100000u}) {
    std::vector<unsigned char> data(bytes);
    for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
    for (int cut = 0; cut < 20; ++cut) {
      INFO(bytes << " bytes, cut " << cut);
      checksum.reset();
      for (std::size_t at = 0; at < bytes;) {
        const std::size_t part = cut == 0 ? bytes : std::min<std::size_t>(bytes - at, 1 + random() % (1 + bytes / 3));
        checksum.update(data.data() + at, part);
        at += part;
      }
      REQUIRE(checksum.digest() == XXH3_64bits(data.data(), bytes));
    }
  }
}

}  // namespace transload
