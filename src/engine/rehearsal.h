// Rehearsal: what an engine moves that follows plans, also through passes that are no steady state: a commit, the first
// step after it, and the one that finds its way back. Block by block, by the rules of engine/ (Schedule is the same),
// but without time: a transfer ends at once, and nothing is fetched ahead of its use. Pure.
#pragma once

#include <memory>
#include <vector>

#include "plan/planner.h"

namespace transload {

class Rehearsal {
 public:
  /// Durable blocks lie in the store, memory is empty. Needs a store (nvme_bytes > 0). `blocks`, and the traces that
  /// are followed, outlive it.
  Rehearsal(const std::vector<BlockSpec>& blocks, const Budgets& budgets);
  ~Rehearsal();

  /// The passes from now on are of this kind.
  void follow(const Trace& trace, const Plan& plan);
  /// One pass of the kind followed.
  LinkBytes step();
  /// Accesses outside a step: nothing is planned for them.
  LinkBytes on_demand(const Trace& trace);
  /// Writes every durable block that the store has not.
  LinkBytes commit();
  /// The most that blocks and workspace of a tier have taken so far.
  std::uint64_t peak_bytes(Tier tier) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
