#include "optim/shard_exchange.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "engine/dry_run.h"

namespace transload {
namespace {

/// One of two ranks; what the other would say is what this one says.
class Echo final : public Communicator {
 public:
  const Place& place() const override { return place_; }
  const char* transport() const override { return "echo"; }
  std::uint64_t memory_bytes() const override { return 0; }
  void all_gather(const BlockView&, const BlockView&, Stream&) override {}
  void reduce_scatter(const BlockView&, const BlockView&, Dtype, Stream&) override {}
  void broadcast(const BlockView&, int, Stream&) override {}
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    ++exchanges;
    for (std::size_t rank = 0; rank < 2; ++rank)
      std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size()));
  }
  int exchanges = 0;

 private:
  Place place_{.rank = 0, .size = 2, .local_rank = 0, .local_size = 2};
};

/// Blocks whose last transfer may have failed.
class Blocks final : public BlockAccess {
 public:
  Pin pin(BlockId block, Tier tier, AccessKind kind) override { return dry_.pin(block, tier, kind); }
  void unpin(Pin pin, Stream& stream) override { dry_.unpin(std::move(pin), stream); }
  std::byte* workspace(Tier tier, std::uint64_t bytes) override { return dry_.workspace(tier, bytes); }
  void begin_backward() override {}
  bool dry() const override { return false; }
  void rethrow_if_failed() const override {
    if (failed) throw Error("the copy of chunk 0 local failed");
  }
  bool failed = false;

 private:
  DryRun dry_;
};

}  // namespace

TEST_CASE("a rank whose transfer failed has no part in the verdict") {
  const Layout layout({{"p", {4096}, false}}, training_planes(Dtype::f32, Dtype::f32, false, true), 16384, {0, 2});
  Blocks blocks;
  Echo echo;
  InlineStream stream;
  ShardExchange exchange(layout, blocks, {.communicator = &echo, .stream = &stream}, make_cpu_gradient_kernels(),
                         [](ChunkId) {});
  REQUIRE_FALSE(exchange.finish().poisoned());
  REQUIRE(echo.exchanges == 1);
  blocks.failed = true;
  REQUIRE_THROWS_WITH(exchange.finish(), Catch::Matchers::Contains("chunk 0 local"));
  REQUIRE(echo.exchanges == 1);
}

}  // namespace transload
