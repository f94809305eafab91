// Ranks of one run beside each other: who is slowest, how far they are apart, and who is waited for in collectives.
//
// A collective ends for all ranks when the last has come, so the rank that spends the least time in it came last. The
// others' time beyond that is their wait for it; no clocks of different machines are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/run_model.h"

namespace transload::report {

struct RankRow {
  int rank = 0;
  double step_s = 0, compute_s = 0, update_s = 0, wait_s = 0;
  double waited_for_others_s = 0;         ///< in collectives of the step shown
  std::uint64_t last_in_collectives = 0;  ///< how often this rank came last
};

/// One kind of collective ("gather", "reduce"): summed over those of the step.
struct CollectiveRow {
  std::string name;
  std::uint64_t count = 0;
  double least_s = 0, waited_s = 0, most_skew_s = 0;  ///< without waiting; waited in sum over ranks; the worst one's
  int last_rank = 0;                                  ///< that came last most often
};

struct RankTable {
  std::vector<RankRow> ranks;
  std::vector<CollectiveRow> collectives;
  int slowest = 0;
  double spread = 0;    ///< slowest over fastest, less one
  std::string missing;  ///< why collectives are not compared; empty where they are
};

RankTable compare_ranks(const std::vector<RunModel>& ranks);

}  // namespace transload::report
