// The engine against a plain model: seeded random accesses on a device and the host; whatever the budget, the tier, the
// plan (right, stale or random) and the order of completions, a pin shows the bytes that were written last.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>

#include "engine/engine.h"
#include "engine/memory_store.h"

namespace transload::testing {

inline constexpr std::uint64_t kFrame = 4096;

/// What computes: a device tier and its compute stream, or neither.
struct Processor {
  Device* device = nullptr;
  Stream* compute = nullptr;
  /// Puts work that touches device memory into the compute stream.
  std::function<void(std::function<void()>)> run;
};

inline std::vector<BlockSpec> some_blocks(std::mt19937_64& random, int n) {
  std::vector<BlockSpec> blocks;
  for (int i = 0; i < n; ++i) {
    BlockSpec b;
    b.name = "block " + std::to_string(i);
    b.bytes = 256 * (1 + random() % 40);  // up to 10 KiB: one to three frames
    b.durable = i % 4 != 3;
    blocks.push_back(b);
  }
  return blocks;
}

inline std::string read_out(const BlockView& view) {
  std::string s(view.bytes(), '\0');
  view.copy_out(s.data(), 0, view.bytes());
  return s;
}

struct Model {
  std::map<std::uint32_t, std::string> content;
};

/// One access by engine and model; compares what a reader sees. Work runs on `stream`.
inline void access(Engine& engine, Model& model, Stream& stream, const Processor& processor,
                   const std::vector<BlockSpec>& blocks, BlockId id, Tier tier, AccessKind kind, std::uint64_t salt,
                   std::atomic<int>& wrong) {
  const auto run = [&](std::function<void()> work) {
    if (tier == Tier::device)
      processor.run(std::move(work));
    else
      stream.launch(std::move(work));
  };
  Pin pin = engine.pin(id, tier, kind);
  stream.wait(pin.ready);
  const BlockView view = pin.view;
  std::string& now = model.content[id.value];
  if (needs_content(kind))
    run([view, expected = now, &wrong] {
      if (read_out(view) != expected) ++wrong;
    });
  if (makes_version(kind)) {
    std::string next(blocks[id.value].bytes, '\0');
    for (std::size_t i = 0; i < next.size(); ++i) next[i] = static_cast<char>(salt * 31 + i * 7 + id.value);
    now = next;
    run([view, next] { view.copy_in(next.data(), 0, next.size()); });
  }
  if (kind == AccessKind::consume) model.content.erase(id.value);
  engine.unpin(std::move(pin), stream);
}

inline AccessKind choose(std::mt19937_64& random, const Model& model, BlockId id, bool durable) {
  if (!model.content.contains(id.value)) return AccessKind::write;
  const auto r = random() % 10;
  if (r < 5) return AccessKind::read;
  if (r < 8) return AccessKind::update;
  return durable || r == 8 ? AccessKind::write : AccessKind::consume;
}

/// A plan that means nothing: law 2.
inline Plan random_plan(std::mt19937_64& random, std::size_t ticks, std::size_t blocks) {
  Plan plan;
  for (int tier = 0; tier < 2; ++tier)
    for (std::uint32_t t = 0; t < ticks; ++t) {
      if (random() % 3 == 0) plan.fetches[tier].push_back({BlockId(random() % blocks), t});
      if (random() % 3 == 0) plan.drops[tier].push_back({BlockId(random() % blocks), t});
    }
  return plan;
}

/// `steps` steps of 200 accesses, a commit after each.
inline void run_steps(std::uint64_t seed, const Processor& processor, bool lru, bool with_plan, int steps) {
  const bool device_tier = processor.device != nullptr;
  std::mt19937_64 random(seed);
  const auto blocks = some_blocks(random, 24);
  MemoryStore store(seed);
  EngineOptions options;
  options.frame_bytes = kFrame;
  options.host_bytes = (12 + random() % 24) * kFrame;
  options.device_bytes = device_tier ? (8 + random() % 12) * kFrame : 0;
  options.lru = lru;
  options.device = processor.device;
  Engine engine(blocks, options, &store);
  InlineStream inline_stream;
  QueueStream host(64);
  const auto synchronize = [&] {
    if (device_tier) processor.compute->synchronize();
    host.synchronize();
  };
  Model model;
  std::atomic<int> wrong{0};
  Trace trace;
  for (int i = 0; i < 200; ++i)
    trace.accesses.push_back({BlockId(random() % blocks.size()),
                              device_tier && random() % 2 ? Tier::device : Tier::host, AccessKind::read,
                              static_cast<std::uint32_t>(i + 1)});
  if (with_plan) engine.set_plan(trace, random_plan(random, trace.accesses.size(), blocks.size()));
  for (int step = 0; step < steps; ++step) {
    engine.begin_step();
    for (int i = 0; i < 200; ++i) {
      const BlockId id(random() % blocks.size());
      const Tier tier = device_tier && random() % 2 ? Tier::device : Tier::host;
      Stream& stream = !device_tier           ? static_cast<Stream&>(inline_stream)
                       : tier == Tier::device ? *processor.compute
                                              : host;
      access(engine, model, stream, processor, blocks, id, tier, choose(random, model, id, blocks[id.value].durable),
             random(), wrong);
      if (i % 50 == 49) {
        synchronize();
        const Tier grown = device_tier ? Tier::device : Tier::host;
        engine.workspace(grown, (random() % 5) * kFrame);
      }
    }
    engine.end_step();
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (blocks[i].durable && !model.content.contains(static_cast<std::uint32_t>(i)))
        access(engine, model, device_tier ? static_cast<Stream&>(host) : inline_stream, processor, blocks, BlockId(i),
               Tier::host, AccessKind::write, 1, wrong);
    synchronize();
    engine.commit("step");
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (blocks[i].durable)
        REQUIRE(store.content(store.committed().blocks[i].slot) == model.content[static_cast<std::uint32_t>(i)]);
  }
  synchronize();
  REQUIRE(wrong == 0);
  CHECK_FALSE(store.in_flight_at_commit);
  const EngineCounters c = engine.counters();
  CHECK(c.peak_bytes[1] <= options.host_bytes);
  CHECK(c.peak_bytes[0] <= options.device_bytes);
}

inline void run_model(std::uint64_t seed, const Processor& processor, bool lru, bool with_plan) {
  run_steps(seed, processor, lru, with_plan, 6);
}

}  // namespace transload::testing
