// Going on with another number of ranks or another chunk size: the state stays as it was, bit by bit.
#include "train/reshard.h"

#include <catch2/catch.hpp>
#include <set>

#include "train/initial_state.h"
#include "train/many_ranks.h"

using namespace transload;
using namespace transload::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::uint64_t kChunks[] = {4 * KiB, 7 * KiB, 64 * KiB};

/// What one rank in memory would have: the fingerprint of a step.
std::string expected_fingerprint(std::uint64_t step, Dtype dtype) {
  const TempFolder folder(true);
  OnePeer alone;
  go_on({folder.path("run"), ""}, {.dtype = dtype}, alone, {}, step);
  return fingerprint_run(folder.path("run"), {});
}

void go_on_as(const std::string& run, const Shape& shape, const Then& then = {}) {
  World(shape.ranks).run_well([&](Peers& peers) { go_on({run, ""}, shape, peers, then); });
}

/// Every rank has a run folder of its own, that the others do not see.
struct LocalDisks {
  std::string of(std::uint32_t rank) const { return folder.path(fmt::format("node{}", rank)); }
  /// All of them in one folder, as verify and export want it.
  std::string together(std::uint32_t ranks) const {
    const std::string all = folder.path("all");
    std::filesystem::remove_all(all);
    for (std::uint32_t r = 0; r < ranks; ++r)
      if (std::filesystem::exists(of(r)))
        std::filesystem::copy(
            of(r), all, std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    return all;
  }
  TempFolder folder{true};
};

std::uint64_t stored_moments(const std::string& run) {
  OpenGroup open = open_run(run);
  std::uint64_t written = 0;
  for (const auto& store : open.stores) {
    const Layout layout = transload::layout_of(parse_meta(store->committed().metadata, run), run);
    for (std::size_t b = 0; b < layout.blocks().size(); ++b)
      if (layout.blocks()[b].plane.starts_with("moment") && store->committed().blocks[b].slot.valid()) ++written;
  }
  return written;
}

}  // namespace

TEST_CASE("From any number of ranks to any other, and to another chunk size, the state is the same", "[reshard]") {
  const Dtype dtype = GENERATE(Dtype::bf16, Dtype::f32);
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  const std::vector<std::uint32_t> counts = {1, 2, 3, 4, 5, 8};
  // A walk through all pairs; a pair of equals is a change of the chunk size.
  std::vector<std::uint32_t> walk;
  for (std::size_t distance = 0; distance < counts.size(); ++distance)
    for (std::size_t i = 0; i < counts.size(); ++i) {
      walk.push_back(counts[i]);
      walk.push_back(counts[(i + distance) % counts.size()]);
    }
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  std::uint64_t step = 1;
  for (std::size_t hop = 0; hop < walk.size(); ++hop) {
    const Shape shape{.ranks = walk[hop], .chunk_bytes = kChunks[hop % 3], .dtype = dtype};
    INFO("hop " << hop << " to " << shape.ranks << " ranks, chunks of " << shape.chunk_bytes);
    if (hop > 0) seen.insert({walk[hop - 1], walk[hop]});
    go_on_as(run, shape);
    REQUIRE(check_run(run) == step);
    REQUIRE(stores_in(run).size() == shape.ranks);
    if (hop % 6 != 0) continue;
    REQUIRE(verify_run(run, {}).empty());
    REQUIRE(fingerprint_run(run, {}) == expected_fingerprint(step, dtype));
    go_on_as(run, shape, to_step(++step));  // the same stores, and their second commit
    REQUIRE(check_run(run) == step);
  }
  CHECK(seen.size() >= 36);
}

TEST_CASE("Stores on disks that the other ranks do not see are broadcast", "[reshard]") {
  const auto [before, after] = GENERATE(std::pair{1u, 3u}, std::pair{2u, 5u}, std::pair{3u, 3u}, std::pair{1u, 1u});
  INFO(before << " to " << after);
  const LocalDisks disks;
  const auto go = [&, after = after](std::uint32_t ranks, std::uint64_t chunk_bytes, const Then& then) {
    World(ranks).run_well([&](Peers& peers) {
      go_on({disks.of(peers.rank()), ""}, {.ranks = ranks, .chunk_bytes = chunk_bytes}, peers, then, 7);
    });
  };
  go(before, 4 * KiB, {});
  go(after, 7 * KiB, {});
  CHECK(check_run(disks.together(after)) == 7);
  CHECK(fingerprint_run(disks.together(after), {}) == expected_fingerprint(7, Dtype::bf16));
  go(after, 7 * KiB, to_step(8));
  CHECK(check_run(disks.together(after)) == 8);
  for (std::uint32_t r = 0; r < after; ++r) CHECK(stores_in(disks.of(r)).size() == 1);
}

TEST_CASE("Ranks that have changed places go on", "[reshard]") {
  const LocalDisks disks;
  World(3).run_well([&](Peers& peers) { go_on({disks.of(peers.rank()), ""}, {.ranks = 3}, peers); });
  World(3).run_well([&](Peers& peers) { go_on({disks.of((peers.rank() + 1) % 3), ""}, {.ranks = 3}, peers); });
  CHECK(check_run(disks.together(3)) == 1);
}

TEST_CASE("A damaged block of a store that one rank sees ends all ranks, by name", "[reshard]") {
  const LocalDisks disks;
  World(2).run_well([&](Peers& peers) { go_on({disks.of(peers.rank()), ""}, {.ranks = 2}, peers); });
  const std::string path = disks.of(1) + "/store-g0-r1/slots-0000";
  std::string bytes = read_whole(path);
  for (std::size_t i = 4096; i < bytes.size(); i += 512) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto errors = World(3).run([&](Peers& peers) { go_on({disks.of(peers.rank()), ""}, {.ranks = 3}, peers); });
  for (const std::exception_ptr& thrown : errors) {
    REQUIRE(thrown);
    CHECK_THAT(MESSAGE_OF(DamageError, std::rethrow_exception(thrown)), Contains(path) && Contains("rank 1"));
  }
}

TEST_CASE("Moments that nobody wrote stay unwritten", "[reshard]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  OnePeer alone;
  go_on({run, ""}, {}, alone, {}, 0);
  CHECK(stored_moments(run) == 0);
  const std::string fingerprint = fingerprint_run(run, {});
  for (const std::uint32_t ranks : {3u, 8u, 2u, 1u}) {
    go_on_as(run, {.ranks = ranks, .chunk_bytes = 5 * KiB});
    CHECK(check_run(run) == 0);
    CHECK(stored_moments(run) == 0);
    CHECK(fingerprint_run(run, {}) == fingerprint);
  }
}

TEST_CASE("A run from before there were ids gets one when it is first resharded", "[reshard]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  {
    RankState state({}, 0);
    state.create(run + "/store");
    state.fill(3);
    OnePeer alone;
    WorldCommit commits(run, "", 0, alone);
    state.commit(commits, "", 0, 3);
  }
  CHECK(check_run(run) == 3);
  go_on_as(run, {.ranks = 2});
  CHECK(check_run(run) == 3);
  CHECK(read_group_file(run)->run_id.size() == 32);
  CHECK(stores_in(run) == std::vector<std::string>{"store-g1-r0", "store-g1-r1"});
}

TEST_CASE("A rank reads the blocks that it needs", "[reshard]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  go_on_as(run, {.ranks = 4});
  std::uint64_t durable = 0;
  const Layout layout = testing::layout_of({.ranks = 4}, 0);
  for (const BlockSpec& block : layout.blocks()) durable += block.durable ? block.bytes : 0;
  std::atomic<std::uint64_t> most{0};
  World(2).run_well([&](Peers& peers) {
    const RunStores stores({run, ""}, peers);
    OpenGroup old = open_group(stores);
    RankState state({.ranks = 2}, peers.rank());
    state.create(folder.path(fmt::format("new{}", peers.rank())));
    reshard(old.view, state.layout(), state.engine(), state.stream(), {});
    std::uint64_t read = 0;
    for (const auto& store : old.stores) read += store->facts().bytes_read;
    std::uint64_t seen = most;
    while (read > seen && !most.compare_exchange_weak(seen, read)) continue;
  });
  CHECK(most > 0);
  CHECK(most < 3 * durable);  // of 4 × durable; a half, and the blocks at its ends
}

TEST_CASE("State of another model is refused", "[reshard]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  go_on_as(run, {.ranks = 2});
  OpenGroup old = open_run(run);
  const auto message = [&](std::vector<ParamSpec> params, Dtype dtype) {
    const Layout layout(std::move(params), training_planes(dtype, dtype, false), 4 * KiB);
    Engine engine(layout.blocks(), {.host_bytes = 128 * KiB, .frame_bytes = 4096, .populate = false}, nullptr);
    InlineStream stream;
    return MESSAGE_OF(InputError, reshard(old.view, layout, engine, stream, {}));
  };
  std::vector<ParamSpec> params = odd_params();
  CHECK_THAT(message(params, Dtype::f32), Contains("weight in fp32"));
  params[1].shape = {700, 3};
  CHECK_THAT(message(params, Dtype::bf16), Contains("wide"));
  params = odd_params();
  params[2].frozen = false;
  CHECK_THAT(message(params, Dtype::bf16), Contains("frozen.w is frozen"));
  params.pop_back();
  CHECK_THAT(message(params, Dtype::bf16), Contains("9 parameters instead of 8"));
}

TEST_CASE("First weights are written by shard, each element asked for by one rank", "[reshard]") {
  class Counting final : public InitialWeights {
   public:
    void fill(const ParamSpec& param, std::uint64_t begin, std::uint64_t count, float* to) const override {
      const std::vector<ParamSpec> params = odd_params();
      std::size_t p = 0;
      while (params[p].name != param.name) ++p;
      for (std::uint64_t i = 0; i < count; ++i) to[i] = value_of(0, 0, p, begin + i);
      asked += count;
    }
    std::string identity() const override { return "counting"; }
    mutable std::atomic<std::uint64_t> asked{0};
  };
  std::uint64_t elements = 0;
  for (const ParamSpec& param : odd_params()) elements += param.elements();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const std::uint32_t ranks : {1u, 2u, 5u, 8u}) {
      INFO(ranks << " ranks");
      const TempFolder folder(true);
      const std::string run = folder.path("run");
      const Shape shape{.ranks = ranks, .dtype = dtype};
      Counting weights;
      World(ranks).run_well([&](Peers& peers) {
        const RunStores stores({run, ""}, peers);
        const std::string run_id = stores.agree_on_run_id();
        RankState state(shape, peers.rank());
        state.create(stores.make_place(peers.rank(), ranks));
        write_initial_weights(state.layout(), state.engine(), state.stream(), &weights);
        declare_zero_moments(state.layout(), state.engine());
        WorldCommit commits(run, run_id, 0, peers);
        state.commit(commits, run_id, 0, 0);
      });
      CHECK(weights.asked == elements);
      CHECK(check_run(run) == 0);
    }
}
