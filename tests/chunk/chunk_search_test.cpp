#include "chunk/chunk_search.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/size.h"

namespace transload {
namespace {

const std::vector<ParamSpec> kParams = {{"a", {4000, 1000}, false}, {"b", {1000}, false}, {"c", {3000, 999}, false}};
const std::vector<PlaneSpec> kPlanes = training_planes(Dtype::bf16, Dtype::bf16, false);

ChunkSearch search_with(std::function<std::uint64_t(std::uint64_t)> cost) {
  ChunkSearch search;
  search.params = &kParams;
  search.planes = &kPlanes;
  search.host_bytes = 100 * MiB;
  search.least_host_bytes = [](std::uint64_t chunk) { return 8 * chunk; };
  search.cost = std::move(cost);
  return search;
}

}  // namespace

TEST_CASE("waste counts padding in every plane and the ends of frames") {
  // One parameter of 129 elements: a chunk of 256; planes of 512, 512, 1024, 1024, 512 bytes in frames of 32 KiB.
  const Layout layout({{"a", {129}, false}}, kPlanes, 256 * KiB);
  REQUIRE(waste_bytes(layout) == 5 * 32 * KiB - 129 * 14);
}

TEST_CASE("the size with the least bytes moved wins where it differs much") {
  for (const std::uint64_t wanted : {512 * KiB, 2 * MiB, 8 * MiB}) {
    const auto search =
        search_with([&](std::uint64_t chunk) { return chunk == wanted ? 1'000'000'000u : 2'000'000'000u; });
    REQUIRE(search_chunk_size(search).chunk_bytes == wanted);
  }
}

TEST_CASE("sizes that do not fit are never asked for and never chosen") {
  const auto search = search_with([](std::uint64_t chunk) {
    REQUIRE(8 * chunk <= 100 * MiB);
    return 100 * MiB - chunk;
  });
  const ChunkChoice choice = search_chunk_size(search);
  REQUIRE(8 * choice.chunk_bytes <= search.host_bytes);
  REQUIRE(search_chunk_size(search).chunk_bytes == choice.chunk_bytes);
}

TEST_CASE("with nothing to move the least waste and the fewest blocks decide") {
  const auto search = search_with([](std::uint64_t) { return 0u; });
  const ChunkChoice choice = search_chunk_size(search);
  REQUIRE(choice.moved_bytes == 0);
  REQUIRE(choice.chunk_bytes >= MiB);
}

TEST_CASE("too many blocks are tried only where nothing else fits") {
  auto search = search_with([](std::uint64_t chunk) { return chunk * 1000; });
  search.max_blocks = 10;
  const std::uint64_t large = search_chunk_size(search).chunk_bytes;
  REQUIRE(large > kMinChunkBytes);
  search.host_bytes = 8 * kMinChunkBytes;
  REQUIRE(search_chunk_size(search).chunk_bytes == kMinChunkBytes);
  search.host_bytes -= 1;
  try {
    search_chunk_size(search);
    FAIL("accepted");
  } catch (const BudgetError& e) {
    REQUIRE(e.needed_bytes == 8 * kMinChunkBytes);
    REQUIRE(e.given_bytes == search.host_bytes);
  }
}

}  // namespace transload
