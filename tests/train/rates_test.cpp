// The measurement of links at start-up: rates where all goes well, and nothing under way where a transfer fails.
#include "train/rates.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/size.h"
#include "engine/memory_store.h"

using namespace transload;

TEST_CASE("Links are measured with the store's own blocks") {
  MemoryStore store(1);
  const Rates rates = measure_rates(&store, {{64 * KiB, 20}}, 16 * MiB, 0);
  CHECK(rates.nvme_read > 0);
  CHECK(rates.nvme_write > 0);
  CHECK(rates.nvme_duplex > 0);
  CHECK(rates.memory > 0);
}

TEST_CASE("A transfer that fails ends the measurement after all others have ended: their memory is given back") {
  for (int failing = 0; failing < 40; ++failing) {
    MemoryStore store(static_cast<std::uint64_t>(failing));
    store.fail_at(failing);
    REQUIRE_THROWS_AS(measure_rates(&store, {{64 * KiB, 20}}, 16 * MiB, 0), IoError);
    REQUIRE(store.idle());
  }
}
