// Proofs.
//  nvme_read: a byte is in device or host memory, or must be fetched when used. The two memories never hold more
//    different bytes than their summed room, so they are at best one cache of that size: least_fetch_bytes.
//  nvme_write: a version whose bytes do not all stay in memory from its making to its end is written at least as far
//    as they do not. Its life is an interval that either fits beside the others or costs: least_fetch_bytes again, with
//    versions' lives as the intervals and reads within them as nothing.
//  host_to_device: as nvme_read with the device alone as the cache. A device use whose content the host made since the
//    last device use must be fetched whatever stayed: the host's access counts as one that ends the copy.
//  device_to_host: a version made on the device whose next use that needs it is the host's crosses the link.
#include "plan/link_bounds.h"

#include <algorithm>

#include "plan/tier_sequences.h"

namespace transload {

namespace {

std::vector<std::uint64_t> block_bytes(const PlanInput& input) {
  std::vector<std::uint64_t> bytes;
  for (const BlockSpec& b : *input.blocks) bytes.push_back(b.bytes);
  return bytes;
}

void add_capacity(const PlanInput& input, Tier tier, std::vector<std::uint64_t>& capacity) {
  const std::vector<std::uint64_t> workspace = workspace_by_tick(*input.trace, tier);
  const std::uint64_t budget = input.budgets.of(tier);
  for (std::size_t t = 0; t < capacity.size(); ++t) capacity[t] += budget > workspace[t] ? budget - workspace[t] : 0;
}

/// Reads vanish (they become uses of an empty block), ends of versions become needs.
CacheProblem version_lives(const CacheProblem& memory) {
  CacheProblem lives = memory;
  lives.block_bytes.push_back(0);
  const auto nothing = static_cast<std::uint32_t>(lives.block_bytes.size() - 1);
  std::vector<char> alive(lives.block_bytes.size(), 0), versioned(lives.block_bytes.size(), 0);
  for (const CacheProblem::Use& use : memory.uses) {
    if (makes_version(use.kind)) versioned[use.block] = 1;
    if (use.kind != AccessKind::read) alive[use.block] = use.kind != AccessKind::consume;
  }
  for (CacheProblem::Use& use : lives.uses) {
    const std::uint32_t block = use.block;
    if (use.kind == AccessKind::read || versioned[block] == 0) {
      use = {nothing, AccessKind::read};
      continue;
    }
    const bool was_alive = alive[block] != 0;
    alive[block] = use.kind != AccessKind::consume;
    if (use.kind == AccessKind::write && was_alive) use.kind = AccessKind::update;
    if (use.kind == AccessKind::consume && !was_alive) use = {nothing, AccessKind::read};
  }
  return lives;
}

std::uint64_t least_to_device(const PlanInput& input) {
  CacheProblem problem;
  problem.block_bytes = block_bytes(input);
  problem.capacity.assign(input.trace->accesses.size(), 0);
  add_capacity(input, Tier::device, problem.capacity);
  problem.block_bytes.push_back(0);
  const auto nothing = static_cast<std::uint32_t>(problem.block_bytes.size() - 1);
  std::uint64_t forced = 0;
  // Twice around: the second time the state before each access is that of the steady state.
  std::vector<char> made_on_host(problem.block_bytes.size(), 0);
  for (int round = 0; round < 2; ++round) {
    problem.uses.clear();
    forced = 0;
    for (const Access& a : input.trace->accesses) {
      char& on_host = made_on_host[a.block.value];
      if (a.tier != Tier::device) {
        if (a.kind != AccessKind::read) on_host = a.kind == AccessKind::consume ? 0 : 1;
        // A consume before it ends the copy without a need of its own.
        problem.uses.push_back({a.kind == AccessKind::read ? nothing : a.block.value, AccessKind::write});
        continue;
      }
      AccessKind kind = a.kind;
      if (on_host != 0 && needs_content(kind)) {
        forced += problem.block_bytes[a.block.value];
        // The interval before it saves nothing: for the cache it begins anew here.
        if (kind != AccessKind::consume) kind = AccessKind::write;
      }
      const bool vanishes = on_host != 0 && a.kind == AccessKind::consume;
      on_host = 0;
      problem.uses.push_back({vanishes ? nothing : a.block.value, kind});
    }
  }
  return forced + least_fetch_bytes(problem);
}

std::uint64_t least_from_device(const PlanInput& input) {
  std::vector<char> only_on_device(input.blocks->size(), 0);
  std::uint64_t bytes = 0;
  for (int round = 0; round < 2; ++round) {
    bytes = 0;
    for (const Access& a : input.trace->accesses) {
      char& there = only_on_device[a.block.value];
      if (a.tier == Tier::device) {
        if (a.kind != AccessKind::read) there = makes_version(a.kind) ? 1 : 0;
        continue;
      }
      if (there != 0 && needs_content(a.kind)) bytes += (*input.blocks)[a.block.value].bytes;
      there = 0;
    }
  }
  return bytes;
}

}  // namespace

CacheProblem memory_problem(const PlanInput& input) {
  CacheProblem problem;
  problem.block_bytes = block_bytes(input);
  for (const Access& a : input.trace->accesses) problem.uses.push_back({a.block.value, a.kind});
  problem.capacity.assign(problem.uses.size(), 0);
  add_capacity(input, Tier::host, problem.capacity);
  if (input.budgets.device_bytes > 0) add_capacity(input, Tier::device, problem.capacity);
  return problem;
}

void find_link_bounds(const PlanInput& input, std::uint64_t (&bound)[kLinks]) {
  std::fill(std::begin(bound), std::end(bound), 0);
  if (input.budgets.nvme_bytes > 0) {
    const CacheProblem memory = memory_problem(input);
    bound[static_cast<int>(Link::nvme_read)] = least_fetch_bytes(memory);
    bound[static_cast<int>(Link::nvme_write)] = least_fetch_bytes(version_lives(memory));
  }
  if (input.budgets.device_bytes > 0) {
    bound[static_cast<int>(Link::host_to_device)] = least_to_device(input);
    bound[static_cast<int>(Link::device_to_host)] = least_from_device(input);
  }
}

}  // namespace transload
