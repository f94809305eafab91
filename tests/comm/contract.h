// What every communicator must do, as functions that each rank of a job calls alike; they throw where it does not.
// Joined by ranks that are threads (contract_test.cpp), processes, processes under mpirun (mpi_ranks.cpp), and by
// NCCL's over the CUDA stand-in.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace transload::testing {

struct Clause {
  const char* name;
  void (*run)(Communicator&);
};
const std::vector<Clause>& contract();

/// A number that depends on all arguments and nothing else.
std::uint64_t scramble(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);
/// A hash of the bits of sums in many sizes and both types, after random delays from `seed`.
std::uint64_t hash_of_sums(Communicator& communicator, std::uint64_t seed);
/// The same hash by the scalar reference, for `size` ranks: what every rank's must be, by rank.
std::uint64_t reference_hash_of_sums(int rank, int size);

}  // namespace transload::testing
