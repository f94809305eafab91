#include "plan/gather_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

namespace transload {
namespace {

std::vector<ChunkId> ids(const std::vector<unsigned>& numbers) {
  std::vector<ChunkId> out;
  for (const unsigned n : numbers) out.emplace_back(n);
  return out;
}

/// Forward over the layers, the head with the first chunk, and back, each layer's chunks up and down again.
std::vector<ChunkId> sweep(unsigned layers, unsigned chunks_a_layer) {
  std::vector<ChunkId> uses;
  const auto layer = [&](unsigned l, bool down) {
    for (unsigned c = 0; c < chunks_a_layer; ++c)
      uses.emplace_back(1 + l * chunks_a_layer + (down ? chunks_a_layer - 1 - c : c));
  };
  uses.emplace_back(0);
  for (unsigned l = 0; l < layers; ++l) layer(l, false);
  uses.emplace_back(0);
  for (unsigned l = layers; l-- > 0;) layer(l, false), layer(l, true);
  return uses;
}

/// The least number of gathers of any plan that gathers when needed (farthest next use leaves).
std::size_t least_gathers(const std::vector<ChunkId>& uses, std::size_t room) {
  std::vector<ChunkId> held;
  std::size_t gathers = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (std::find(held.begin(), held.end(), uses[i]) != held.end()) continue;
    const auto next = [&](ChunkId c) {
      return std::find(uses.begin() + static_cast<std::ptrdiff_t>(i), uses.end(), c) - uses.begin();
    };
    if (held.size() == room)
      held.erase(std::max_element(held.begin(), held.end(), [&](ChunkId a, ChunkId b) { return next(a) < next(b); }));
    held.push_back(uses[i]);
    ++gathers;
  }
  return gathers;
}

/// Follows a plan; returns its gathers.
std::size_t check(const std::vector<ChunkId>& uses, std::size_t room) {
  const GatherPlan plan = plan_gathers(uses, room);
  REQUIRE(plan.uses.size() == uses.size());
  REQUIRE(plan.room == room);
  std::set<ChunkId> held;
  std::size_t gathers = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    REQUIRE(plan.uses[i].chunk == uses[i]);
    for (const ChunkId chunk : plan.uses[i].gather) {
      REQUIRE(held.insert(chunk).second);
      ++gathers;
    }
    REQUIRE(held.size() <= room);
    REQUIRE(held.count(uses[i]) == 1);
    if (plan.uses[i].last) held.erase(uses[i]);
  }
  REQUIRE(held.empty());
  return gathers;
}

}  // namespace

TEST_CASE("gathers of random orders are there when used, within room, and few") {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<unsigned> numbers(random() % 40);
    const unsigned chunks = 1 + random() % 9;
    for (unsigned& n : numbers) n = random() % chunks;
    const std::vector<ChunkId> uses = ids(numbers);
    for (std::size_t room = 1; room <= 10; ++room) {
      const std::size_t gathers = check(uses, room);
      REQUIRE(gathers >= least_gathers(uses, room));
      // One place is for the chunk that comes next.
      REQUIRE(gathers <= least_gathers(uses, std::max<std::size_t>(1, room - 1)));
    }
  }
}

TEST_CASE("with room for two, the next chunk is gathered while one is in use") {
  const std::vector<ChunkId> uses = sweep(3, 2);
  const GatherPlan plan = plan_gathers(uses, 2);
  for (std::size_t i = 0; i + 1 < uses.size(); ++i) {
    if (uses[i] == uses[i + 1]) continue;
    // Not with the use itself: with an earlier one, or there since an earlier use.
    const auto& gather = plan.uses[i + 1].gather;
    REQUIRE(std::find(gather.begin(), gather.end(), uses[i + 1]) == gather.end());
  }
}

TEST_CASE("room for a layer and the next one gathers each layer once forward and once back") {
  for (const unsigned chunks : {1u, 3u, 7u}) {
    const std::size_t gathers = check(sweep(8, chunks), chunks + 2);
    REQUIRE(gathers <= 2 + 2 * 8 * chunks);
  }
}

TEST_CASE("no uses and one use") {
  REQUIRE(check({}, 3) == 0);
  REQUIRE(check(ids({4}), 1) == 1);
}

}  // namespace transload
