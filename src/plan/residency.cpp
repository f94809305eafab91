#include "plan/residency.h"

namespace transload {
namespace {

/// One tier over one step, from what the step before left there.
void walk(const Trace& trace, const Plan& plan, int tier, std::vector<bool>& here) {
  const std::size_t ticks = trace.accesses.size();
  std::vector<std::vector<BlockId>> arrivals(ticks), departures(ticks);
  for (const Plan::Fetch& f : plan.fetches[tier]) arrivals[f.need_tick % ticks].push_back(f.block);
  for (const Plan::Drop& d : plan.drops[tier]) departures[d.after_tick % ticks].push_back(d.block);
  for (std::size_t t = 0; t < ticks; ++t) {
    const Access& access = trace.accesses[t];
    for (const BlockId b : arrivals[t]) here[b.value] = true;
    if (static_cast<int>(access.tier) == tier) here[access.block.value] = true;
    if (access.kind == AccessKind::consume) here[access.block.value] = false;
    for (const BlockId b : departures[t]) here[b.value] = false;
  }
}

}  // namespace

std::vector<Tier> residency(const Trace& trace, const Plan& plan, std::size_t blocks) {
  std::vector<Tier> highest(blocks, Tier::nvme);
  if (trace.accesses.empty()) return highest;
  for (const Tier tier : {Tier::host, Tier::device}) {
    std::vector<bool> here(blocks);
    for (int step = 0; step < 2; ++step) walk(trace, plan, static_cast<int>(tier), here);
    for (std::size_t b = 0; b < blocks; ++b)
      if (here[b]) highest[b] = tier;
  }
  return highest;
}

}  // namespace transload
