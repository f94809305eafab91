#include "plan/residency.h"

#include <catch2/catch.hpp>

using namespace transload;

namespace {

Access access(std::uint32_t block, Tier tier, AccessKind kind = AccessKind::read) {
  return {.block = BlockId(block), .tier = tier, .kind = kind, .release_tick = 0};
}

}  // namespace

TEST_CASE("residency: what is dropped or consumed lives nowhere above nvme") {
  Trace trace;
  trace.accesses = {access(0, Tier::host), access(1, Tier::host), access(2, Tier::host, AccessKind::write),
                    access(2, Tier::host, AccessKind::consume)};
  Plan plan;
  plan.drops[1] = {{.block = BlockId(1), .after_tick = 1}};
  const std::vector<Tier> where = residency(trace, plan, 4);
  CHECK(where == std::vector<Tier>{Tier::host, Tier::nvme, Tier::nvme, Tier::nvme});
}

TEST_CASE("residency: what the planned fetches and drops of a step leave behind") {
  Trace trace;
  trace.accesses = {access(0, Tier::host), access(1, Tier::host)};
  Plan plan;
  plan.fetches[1] = {{.block = BlockId(0), .need_tick = 0}, {.block = BlockId(1), .need_tick = 1}};
  plan.drops[1] = {{.block = BlockId(0), .after_tick = 0}};
  CHECK(residency(trace, plan, 2) == std::vector<Tier>{Tier::nvme, Tier::host});
}

TEST_CASE("residency: the highest tier counts") {
  Trace trace;
  trace.accesses = {access(0, Tier::host), access(0, Tier::device), access(1, Tier::device)};
  Plan plan;
  plan.drops[0] = {{.block = BlockId(1), .after_tick = 2}};
  CHECK(residency(trace, plan, 2) == std::vector<Tier>{Tier::device, Tier::nvme});
  CHECK(residency(Trace{}, Plan{}, 2) == std::vector<Tier>{Tier::nvme, Tier::nvme});
}
