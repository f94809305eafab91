// Lower bounds of the bytes that must move, each proven (proofs in bounds.cpp): no schedule in the steady state moves
// less under the budget. And exact minima for small traces, to test both.
#pragma once

#include <cstdint>
#include <vector>

#include "base/trace_types.h"

namespace transload {

/// One tier over one link pair: accesses that touch the tier, capacity in bytes at each access (budget less workspace).
struct CacheProblem {
  struct Use {
    std::uint32_t block;
    AccessKind kind;
  };
  std::vector<Use> uses;
  std::vector<std::uint64_t> block_bytes;
  std::vector<std::uint64_t> capacity;  ///< a tick
  bool cyclic = true;                   ///< the uses repeat forever; results are a period
};
/// Bytes that must be fetched: fractional farthest-next-use (each byte a page of its own, bypass allowed).
std::uint64_t least_fetch_bytes(const CacheProblem& problem);
/// Least fetched + written-back bytes with the two prices, by min-cost flow (fractional; small traces).
double least_cost(const CacheProblem& problem, double fetch_price, double write_price);

}  // namespace transload
