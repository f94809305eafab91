#include "plan/bounds.h"

#include <catch2/catch.hpp>
#include <random>

#include "plan/brute_force.h"

namespace transload {
namespace {

constexpr std::uint64_t kUnit = 720'720;  // divisible by every small period

enum class Kinds { all, one_gap_a_version };

CacheProblem random_problem(std::uint64_t seed, std::uint32_t blocks, std::size_t uses, bool equal_sizes, Kinds kinds) {
  std::mt19937_64 random(seed);
  CacheProblem problem;
  for (std::uint32_t b = 0; b < blocks; ++b)
    problem.block_bytes.push_back(equal_sizes ? kUnit : kUnit * (1 + random() % 3));
  std::vector<char> alive(blocks, 1);
  std::uint64_t capacity = random() % (blocks + 1);
  for (std::size_t t = 0; t < uses; ++t) {
    const auto b = static_cast<std::uint32_t>(random() % blocks);
    AccessKind kind = static_cast<AccessKind>(random() % 4);
    if (kinds == Kinds::one_gap_a_version && kind == AccessKind::read) kind = AccessKind::update;
    if (kind == AccessKind::consume && random() % 2 == 0) kind = AccessKind::update;
    if (!alive[b]) kind = AccessKind::write;
    problem.uses.push_back({b, kind});
    alive[b] = kind != AccessKind::consume;
    if (random() % 3 == 0) capacity = random() % (blocks + 1);
    problem.capacity.push_back(capacity * kUnit);
  }
  // A block that ends dead begins with `write`: otherwise the step could not follow itself.
  std::vector<char> seen(blocks, 0);
  for (CacheProblem::Use& use : problem.uses) {
    if (!seen[use.block] && !alive[use.block]) use.kind = AccessKind::write;
    seen[use.block] = 1;
  }
  return problem;
}

}  // namespace

TEST_CASE("least_fetch_bytes equals the exhaustive minimum for blocks of one size") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    const CacheProblem problem = random_problem(seed, 2 + seed % 3, 3 + seed % 12, /*equal_sizes=*/true, Kinds::all);
    const double exact = test::BruteForce(problem, 1, 0).steady_state();
    REQUIRE(static_cast<double>(least_fetch_bytes(problem)) == Approx(exact).margin(1.0).epsilon(0));
  }
}

TEST_CASE("least_fetch_bytes is no more than the exhaustive minimum for blocks of several sizes") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    const CacheProblem problem = random_problem(seed, 2 + seed % 3, 3 + seed % 12, false, Kinds::all);
    REQUIRE(static_cast<double>(least_fetch_bytes(problem)) <= test::BruteForce(problem, 1, 0).steady_state() + 1);
  }
}

TEST_CASE("least_cost with free writes is least_fetch_bytes") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const CacheProblem problem = random_problem(seed, 2 + seed % 6, 3 + seed % 14, seed % 2 == 0, Kinds::all);
    REQUIRE(least_cost(problem, 1, 0) ==
            Approx(static_cast<double>(least_fetch_bytes(problem))).epsilon(1e-6).margin(1));
  }
}

TEST_CASE("least_cost agrees with the exhaustive minimum") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const Kinds kinds = seed % 2 == 0 ? Kinds::all : Kinds::one_gap_a_version;
    const CacheProblem problem = random_problem(500 + seed, 2 + seed % 3, 3 + seed % 9, true, kinds);
    const double exact = test::BruteForce(problem, 1, 1.5).steady_state();
    const double bound = least_cost(problem, 1, 1.5);
    REQUIRE(bound <= exact + 1e-6 * exact + 1);
    if (kinds == Kinds::one_gap_a_version) REQUIRE(bound >= exact - 1e-6 * exact - 1);
  }
}

TEST_CASE("known minima") {
  CacheProblem sweep;  // n blocks in the same direction: capacity c saves c fetches, where LRU saves none
  for (std::uint32_t b = 0; b < 10; ++b) {
    sweep.block_bytes.push_back(100);
    sweep.uses.push_back({b, AccessKind::read});
    sweep.capacity.push_back(400);
  }
  REQUIRE(least_fetch_bytes(sweep) == 600);
  sweep.cyclic = false;
  REQUIRE(least_fetch_bytes(sweep) == 1000);
  REQUIRE(least_cost(sweep, 1, 1) == Approx(1000));
  REQUIRE(least_fetch_bytes({}) == 0);
  REQUIRE(least_cost({}, 1, 1) == 0);

  CacheProblem dead;  // content that is consumed and made anew is never fetched
  dead.block_bytes = {64};
  dead.uses = {{0, AccessKind::write}, {0, AccessKind::consume}};
  dead.capacity = {64, 64};
  REQUIRE(least_fetch_bytes(dead) == 0);
  dead.capacity = {0, 64};
  REQUIRE(least_fetch_bytes(dead) == 64);
  REQUIRE(least_cost(dead, 1, 2) == Approx(3 * 64));
  dead.capacity = {16, 64};
  REQUIRE(least_fetch_bytes(dead) == 48);
}

}  // namespace transload
