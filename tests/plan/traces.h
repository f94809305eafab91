// Traces for tests and benches of the planner.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/size.h"
#include "base/trace_types.h"

namespace transload::test {

struct TracedStep {
  Trace trace;
  std::vector<BlockSpec> blocks;
};

inline std::uint64_t all_bytes(const std::vector<BlockSpec>& blocks) {
  std::uint64_t bytes = 0;
  for (const BlockSpec& b : blocks) bytes += b.bytes;
  return bytes;
}

/// A training step with lazy updates: a chunk's update and its forward read, ascending; backward descending.
class StepWriter {
 public:
  /// `compute`: where weights are read and gradients made. Kept inputs: one for every chunk.
  StepWriter(std::uint32_t chunks, std::uint64_t elements, std::uint64_t kept_bytes, Tier compute) : compute_(compute) {
    for (std::uint32_t c = 0; c < chunks; ++c) {
      const std::string name = "chunk " + std::to_string(c) + " ";
      step_.blocks.push_back({name + "weight", elements * 2, true, "weight"});
      step_.blocks.push_back({name + "residue", elements * 2, true, "residue"});
      step_.blocks.push_back({name + "moment1", elements * 4, true, "moment1"});
      step_.blocks.push_back({name + "moment2", elements * 4, true, "moment2"});
      step_.blocks.push_back({name + "gradient", elements * 2, false, "gradient"});
      step_.blocks.push_back({name + "kept", kept_bytes, false, "kept"});
    }
    chunks_ = chunks;
  }

  TracedStep write(std::uint64_t workspace_bytes) {
    workspace(workspace_bytes);
    for (std::uint32_t c = 0; c < chunks_; ++c) {
      update(c);
      const std::uint32_t weight = access(6 * c, compute_, AccessKind::read);
      release(access(6 * c + 5, compute_, AccessKind::write));
      release(weight);
    }
    step_.trace.backward_tick = ticks();
    workspace(workspace_bytes * 2);
    for (std::uint32_t c = chunks_; c-- > 0;) {
      const std::uint32_t weight = access(6 * c, compute_, AccessKind::read);
      const std::uint32_t kept = access(6 * c + 5, compute_, AccessKind::consume);
      release(access(6 * c + 4, compute_, AccessKind::write));
      release(kept);
      release(weight);
    }
    return step_;
  }

 private:
  std::uint32_t ticks() const { return static_cast<std::uint32_t>(step_.trace.accesses.size()); }
  void workspace(std::uint64_t bytes) { step_.trace.workspace.push_back({ticks(), compute_, bytes}); }
  std::uint32_t access(std::uint32_t block, Tier tier, AccessKind kind) {
    step_.trace.accesses.push_back({BlockId(block), tier, kind, 0});
    return ticks() - 1;
  }
  void release(std::uint32_t tick) { step_.trace.accesses[tick].release_tick = ticks(); }
  void update(std::uint32_t c) {
    std::uint32_t held[5];
    for (std::uint32_t plane = 0; plane < 5; ++plane)
      held[plane] = access(6 * c + plane, Tier::host, plane == 4 ? AccessKind::consume : AccessKind::update);
    for (const std::uint32_t tick : held) release(tick);
  }

  TracedStep step_;
  std::uint32_t chunks_ = 0;
  Tier compute_;
};

inline TracedStep training_step(std::uint32_t chunks, std::uint64_t elements, std::uint64_t kept_bytes,
                                std::uint64_t workspace_bytes, Tier compute) {
  return StepWriter(chunks, elements, kept_bytes, compute).write(workspace_bytes);
}

/// Random accesses that are possible: content is needed only where it exists, in the steady state too.
inline TracedStep random_step(std::uint64_t seed, std::uint32_t blocks, std::uint32_t accesses, bool device) {
  std::mt19937_64 random(seed);
  TracedStep step;
  for (std::uint32_t b = 0; b < blocks; ++b)
    step.blocks.push_back({"block " + std::to_string(b), 1 + random() % 40'000, random() % 3 != 0, "weight"});
  std::vector<AccessKind> kinds(blocks, AccessKind::read);
  std::vector<int> left(blocks, 0);
  std::vector<std::uint32_t> order;
  for (std::uint32_t t = 0; t < accesses; ++t) order.push_back(static_cast<std::uint32_t>(random() % blocks));
  for (const std::uint32_t b : order) ++left[b];
  std::vector<char> dead(blocks, 0);
  for (std::uint32_t b = 0; b < blocks; ++b) dead[b] = !step.blocks[b].durable && random() % 2 == 0;
  const std::vector<char> dead_at_start = dead;
  for (std::uint32_t t = 0; t < accesses; ++t) {
    const std::uint32_t b = order[t];
    const bool last = --left[b] == 0;
    AccessKind kind = static_cast<AccessKind>(random() % (step.blocks[b].durable ? 3 : 4));
    if (last && dead_at_start[b]) kind = dead[b] ? AccessKind::write : AccessKind::consume;
    if (dead[b]) kind = AccessKind::write;
    if (last && !dead_at_start[b] && kind == AccessKind::consume) kind = AccessKind::read;
    dead[b] = kind == AccessKind::consume;
    Access a{BlockId(b), device && random() % 2 == 0 ? Tier::device : Tier::host, kind, 0};
    a.release_tick = std::min<std::uint32_t>(t + 1 + static_cast<std::uint32_t>(random() % 3), accesses);
    step.trace.accesses.push_back(a);
    if (random() % 8 == 0) {
      const Tier tier = device && random() % 2 == 0 ? Tier::device : Tier::host;
      step.trace.workspace.push_back({t, tier, random() % 60'000});
    }
  }
  // Pins of one block overlap only where both read at the same tier.
  std::vector<std::uint32_t> next_use(blocks, accesses);
  for (std::uint32_t t = accesses; t-- > 0;) {
    Access& a = step.trace.accesses[t];
    const std::uint32_t next = next_use[a.block.value];
    next_use[a.block.value] = t;
    if (next == accesses) continue;
    const Access& after = step.trace.accesses[next];
    const bool may_overlap = a.kind == AccessKind::read && after.kind == AccessKind::read && a.tier == after.tier;
    if (!may_overlap) a.release_tick = std::min(a.release_tick, next);
  }
  return step;
}

}  // namespace transload::test
