// The contract, joined by ranks that are threads of this process, over every transport of the build.
#include "comm/contract.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "comm/ranks.h"
#include "comm/tree_sum.h"

namespace transload::testing {
namespace {

void join(int size, const Way& way) {
  for (const Clause& clause : contract()) {
    INFO(way.name << ", " << size << " ranks: " << clause.name);
    const std::vector<std::string> errors = run_threads(size, options_of(way), clause.run);
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      INFO("rank " << rank);
      CHECK(errors[rank] == "");
    }
  }
}

}  // namespace

TEST_CASE("one process joins the contract") {
  const auto communicator = make_one_process();
  CHECK(communicator->gathered_is_shard());
  CHECK(communicator->memory_bytes() == 0);
  for (const Clause& clause : contract()) {
    INFO(clause.name);
    CHECK_NOTHROW(clause.run(*communicator));
  }
}

TEST_CASE("the contract by shared memory") {
  for (const int size : {2, 3, 4, 5, 8}) join(size, ways()[0]);
}

#ifdef TRANSLOAD_HAVE_GLOO
TEST_CASE("the contract by TCP") {
  for (const int size : {2, 3, 5}) join(size, ways()[1]);
}
#endif

TEST_CASE("sums have the reference's bits, whatever arrives first") {
  for (const Way& way : ways())
    for (const int size : {2, 7}) {  // 7: three subtrees are left at the end
      std::vector<std::uint64_t> wanted;
      for (int rank = 0; rank < size; ++rank) wanted.push_back(reference_hash_of_sums(rank, size));
      INFO(way.name << ", " << size << " ranks");
      const std::vector<std::string> errors = run_threads(size, options_of(way), [&](Communicator& c) {
        for (std::uint64_t seed = 0; seed < 20; ++seed)
          if (hash_of_sums(c, seed) != wanted[static_cast<std::size_t>(c.rank())])
            throw std::runtime_error("other bits");
      });
      CHECK(errors == std::vector<std::string>(static_cast<std::size_t>(size)));
    }
}

TEST_CASE("small collectives take small buffers") {
  CommOptions options = options_of(ways()[0]);
  std::uint64_t small = 0, large = 0;
  const auto ask = [&](std::uint64_t* bytes) {
    return run_threads(2, options, [=](Communicator& c) {
      if (c.rank() == 0) *bytes = c.memory_bytes();
    });
  };
  ask(&large);
  options.largest_bytes = 1000;
  ask(&small);
  CHECK(small < large);
  CHECK(large < 4u << 20);
}

}  // namespace transload::testing
