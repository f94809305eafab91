// The engine against a plain model: whatever the budget, the tier, the plan (right, stale or random) and the order of
// completions, a pin shows the bytes that were written last.
#include "engine/engine.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>

#include "base/error.h"
#include "engine/engine_model.h"
#include "engine/memory_store.h"

using namespace transload;
using namespace transload::testing;

namespace {

/// The first `blocks` blocks, of a frame each.
void commit_zeros(Engine& engine, std::size_t blocks, Stream& stream) {
  for (std::size_t i = 0; i < blocks; ++i) {
    Pin pin = engine.pin(BlockId(i), Tier::host, AccessKind::write);
    pin.view.zero(0, kFrame);
    engine.unpin(std::move(pin), stream);
  }
  engine.commit("initial");
}

}  // namespace

TEST_CASE("every pin shows the bytes written last, whatever the plan says") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const std::unique_ptr<Device> device = make_emulated_device(0);
    QueueStream compute(64);
    Processor processor;
    if (seed % 2 == 1)
      processor = {device.get(), &compute, [&](std::function<void()> work) { compute.launch(std::move(work)); }};
    run_model(seed, processor, seed % 3 == 0, seed % 4 != 0);
  }
}

TEST_CASE("a step that follows its plan is prefetched and moves what the plan says") {
  // Ten blocks of one frame read in a circle, six frames: the plan keeps four and streams the rest.
  std::vector<BlockSpec> blocks(10);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].name = "b" + std::to_string(i);
    blocks[i].bytes = kFrame;
  }
  MemoryStore store(3);
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = 6 * kFrame;
  Engine engine(blocks, options, &store);
  InlineStream stream;
  commit_zeros(engine, 10, stream);
  Trace trace;
  Plan plan;
  for (std::uint32_t i = 0; i < 10; ++i) {
    trace.accesses.push_back({BlockId(i), Tier::host, AccessKind::read, i + 1});
    if (i >= 4) {
      plan.fetches[1].push_back({BlockId(i), i});
      plan.drops[1].push_back({BlockId(i), i});
    }
  }
  engine.set_plan(trace, plan);
  std::uint64_t before = 0;
  for (int step = 0; step < 8; ++step) {
    if (step == 4) before = engine.counters().link[0].bytes;
    engine.begin_step();
    for (std::uint32_t i = 0; i < 10; ++i) {
      Pin pin = engine.pin(BlockId(i), Tier::host, AccessKind::read);
      pin.ready.wait();
      engine.unpin(std::move(pin), stream);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    engine.end_step();
  }
  const EngineCounters c = engine.counters();
  // Four steps of six fetches; two of the next step's may be on their way ahead, and completions that come late cost
  // the odd block again. LRU would move forty.
  CHECK(c.link[0].bytes - before >= 4 * 6 * kFrame - 2 * kFrame);
  CHECK(c.link[0].bytes - before <= 4 * 6 * kFrame + 6 * kFrame);
  CHECK(c.deviations == 0);
  CHECK(c.demand < 20);
}

TEST_CASE("a plan that comes once fetches nothing for accesses after its own") {
  std::vector<BlockSpec> blocks(4);
  Trace trace;
  Plan plan;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = {.name = "b" + std::to_string(i), .bytes = kFrame};
    trace.accesses.push_back({BlockId(i), Tier::host, AccessKind::read, i + 1});
    plan.fetches[1].push_back({BlockId(i), i});
    plan.drops[1].push_back({BlockId(i), i});
  }
  for (const bool once : {false, true}) {
    CAPTURE(once);
    MemoryStore store(3);
    EngineOptions options;
    options.frame_bytes = kFrame;
    options.host_bytes = 2 * kFrame;
    Engine engine(blocks, options, &store);
    InlineStream stream;
    commit_zeros(engine, blocks.size(), stream);
    plan.once = once;
    engine.set_plan(trace, plan);
    engine.begin_step();
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      Pin pin = engine.pin(BlockId(i), Tier::host, AccessKind::read);
      pin.ready.wait();
      engine.unpin(std::move(pin), stream);
    }
    Pin pin = engine.pin(BlockId(0), Tier::host, AccessKind::read);
    CHECK((pin.found == Found::demand) == once);
    pin.ready.wait();
    engine.unpin(std::move(pin), stream);
  }
}

TEST_CASE("what the host is about to change is not fetched to the device before") {
  constexpr std::uint32_t kBlocks = 6, kSteps = 5;
  std::vector<BlockSpec> blocks(kBlocks);
  Trace trace;
  Plan plan;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    blocks[i].name = "b" + std::to_string(i);
    blocks[i].bytes = kFrame;
    trace.accesses.push_back({BlockId(i), Tier::host, AccessKind::update, 2 * i + 1});
    trace.accesses.push_back({BlockId(i), Tier::device, AccessKind::read, 2 * i + 2});
    plan.fetches[0].push_back({BlockId(i), 2 * i + 1});
    plan.drops[0].push_back({BlockId(i), 2 * i + 1});
  }
  const std::unique_ptr<Device> device = make_emulated_device(0);
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.device_bytes = options.host_bytes = 2 * kBlocks * kFrame;  // room to fetch any of them early
  options.device = device.get();
  Engine engine(blocks, options, nullptr);
  InlineStream stream;
  const auto use = [&](std::uint32_t block, Tier tier, AccessKind kind) {
    Pin pin = engine.pin(BlockId(block), tier, kind);
    pin.ready.wait();
    engine.unpin(std::move(pin), stream);
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // what may be fetched ahead is
  };
  for (std::uint32_t i = 0; i < kBlocks; ++i) use(i, Tier::host, AccessKind::write);
  engine.set_plan(trace, plan);
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    engine.begin_step();
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      use(i, Tier::host, AccessKind::update);
      use(i, Tier::device, AccessKind::read);
    }
    engine.end_step();
  }
  CHECK(engine.counters().link[static_cast<int>(Link::host_to_device)].transfers == kBlocks * kSteps);
  CHECK(engine.counters().deviations == 0);
}

TEST_CASE("too small a budget ends in a BudgetError, not in a wait") {
  std::vector<BlockSpec> blocks(3);
  for (auto& b : blocks) {
    b.name = "b";
    b.bytes = kFrame;
  }
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = 2 * kFrame;
  SECTION("pinned blocks fill it") {
    MemoryStore store(1);
    Engine engine(blocks, options, &store);
    InlineStream stream;
    Pin a = engine.pin(BlockId(0), Tier::host, AccessKind::write);
    Pin b = engine.pin(BlockId(1), Tier::host, AccessKind::write);
    CHECK_THROWS_AS(engine.pin(BlockId(2), Tier::host, AccessKind::write), BudgetError);
    engine.unpin(std::move(a), stream);
    engine.unpin(std::move(b), stream);
    Pin c = engine.pin(BlockId(2), Tier::host, AccessKind::write);
    engine.unpin(std::move(c), stream);
  }
  SECTION("nowhere to write to") {
    Engine engine(blocks, options, nullptr);
    InlineStream stream;
    for (std::uint32_t i = 0; i < 2; ++i) engine.unpin(engine.pin(BlockId(i), Tier::host, AccessKind::write), stream);
    CHECK_THROWS_AS(engine.pin(BlockId(2), Tier::host, AccessKind::write), BudgetError);
    CHECK_THROWS_AS(engine.workspace(Tier::host, kFrame), BudgetError);
    CHECK_THROWS_AS(engine.workspace(Tier::host, 3 * kFrame), BudgetError);
  }
}

TEST_CASE("the first failed transfer reaches the issuing thread and the engine stays failed") {
  for (int k = 0; k < 6; ++k) {
    std::mt19937_64 random(7);
    const auto blocks = some_blocks(random, 24);
    MemoryStore store(5);
    store.fail_at(k);
    EngineOptions options;
    options.frame_bytes = kFrame;
    options.host_bytes = 8 * kFrame;
    Engine engine(blocks, options, &store);
    InlineStream stream;
    bool thrown = false;
    for (int i = 0; i < 200 && !thrown; ++i) {
      try {
        Pin pin = engine.pin(BlockId(static_cast<std::uint64_t>(i) % blocks.size()), Tier::host, AccessKind::write);
        pin.view.zero(0, pin.view.bytes());
        engine.unpin(std::move(pin), stream);
      } catch (const IoError&) {
        thrown = true;
      }
    }
    CHECK(thrown);
    CHECK_THROWS_AS(engine.pin(BlockId(0), Tier::host, AccessKind::write), IoError);
    CHECK_THROWS_AS(engine.commit("x"), IoError);
    CHECK(store.committed().sequence == 0);
  }
}

TEST_CASE("a pin may outlive the plan it was made under") {
  std::vector<BlockSpec> blocks(2);
  for (auto& b : blocks) {
    b.name = "b";
    b.bytes = kFrame;
  }
  MemoryStore store(1);
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = 4 * kFrame;
  Engine engine(blocks, options, &store);
  InlineStream stream;
  const auto trace_of = [](std::uint32_t n) {
    Trace trace;
    for (std::uint32_t i = 0; i < n; ++i) trace.accesses.push_back({BlockId(1), Tier::host, AccessKind::write, i + 1});
    return trace;
  };
  engine.set_plan(trace_of(5000), {});
  engine.begin_step();
  for (int i = 0; i < 4999; ++i) engine.unpin(engine.pin(BlockId(1), Tier::host, AccessKind::write), stream);
  Pin last = engine.pin(BlockId(1), Tier::host, AccessKind::write);
  engine.end_step();
  engine.set_plan(trace_of(1), {});
  engine.unpin(std::move(last), stream);
  CHECK(engine.counters().deviations == 0);
}

TEST_CASE("zeros need no store and no transfer") {
  std::vector<BlockSpec> blocks(1);
  blocks[0].name = "moment1";
  blocks[0].bytes = 3 * kFrame;
  MemoryStore store(1);
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = 4 * kFrame;
  Engine engine(blocks, options, &store);
  engine.set_zero(BlockId(0));
  engine.commit("zeros");
  CHECK_FALSE(store.committed().blocks[0].slot.valid());
  InlineStream stream;
  Pin pin = engine.pin(BlockId(0), Tier::host, AccessKind::update);
  pin.ready.wait();
  CHECK(read_out(pin.view) == std::string(3 * kFrame, '\0'));
  engine.unpin(std::move(pin), stream);
  CHECK(engine.counters().link[0].bytes == 0);
}

TEST_CASE("more blocks leave the device at once than transfers are there: each end begins the next") {
  constexpr std::uint32_t kBlocks = 70;  // above the 48 transfers of an engine
  std::vector<BlockSpec> blocks(kBlocks);
  Trace trace;
  Plan plan;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    blocks[i] = {.name = "block " + std::to_string(i), .bytes = kFrame, .durable = true, .plane = "weight"};
    trace.accesses.push_back({BlockId(i), Tier::device, AccessKind::write, i + 1});
    plan.drops[0].push_back({BlockId(i), i});
  }
  MemoryStore store(1);
  const std::unique_ptr<Device> device = make_emulated_device(4e6);  // a millisecond a block
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = options.device_bytes = (kBlocks + 4) * kFrame;
  options.device = device.get();
  Engine engine(blocks, options, &store);
  engine.set_plan(trace, plan);
  engine.begin_step();
  InlineStream stream;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    Pin pin = engine.pin(BlockId(i), Tier::device, AccessKind::write);
    const std::string bytes(kFrame, static_cast<char>(i + 1));
    pin.view.copy_in(bytes.data(), 0, kFrame);
    engine.unpin(std::move(pin), stream);
  }
  engine.end_step();
  engine.commit("all on the host");
  for (std::uint32_t i = 0; i < kBlocks; ++i)
    CHECK(store.content(store.committed().blocks[i].slot) == std::string(kFrame, static_cast<char>(i + 1)));
}
