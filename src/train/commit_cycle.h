// What a commit moves, and the steps after it that are no steady ones: a commit applies the pending updates and writes
// what the store lacks; the first step after it has nothing to apply; the second finds other blocks in memory than a
// steady one. From there on a step moves what its plan says. Pure.
#pragma once

#include "train/planning.h"

namespace transload {

struct CommitCycle {
  LinkBytes commit, first, second;
  std::uint64_t peak_bytes[2] = {};  ///< device, host: the most in use, nothing fetched ahead
  /// Bytes a step over a cycle of `steps` from commit to commit; `steady`: a planned step's.
  double a_step(Link link, std::uint64_t steps, std::uint64_t steady) const;
};

/// Without a store there is no commit: zeros.
CommitCycle rehearse_commit(const Prepared& prepared, const Rates& rates);

}  // namespace transload
