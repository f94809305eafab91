// The one family of exceptions for what the environment or the user got wrong. A broken invariant is not among them:
// that is TRANSLOAD_CHECK (check.h). An expected refusal (no slot, over budget in the middle) is a return value.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace transload {

/// Base of all; what() is a complete sentence or two: what happened, where, how much, what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Wrong input from the user: flags, configs, sizes, names (Python: ValueError).
class InputError : public Error {
 public:
  using Error::Error;
};

/// A budget that is too small, with the numbers (Python: MemoryError).
class BudgetError : public Error {
 public:
  BudgetError(const std::string& message, std::uint64_t needed, std::uint64_t given)
      : Error(message), needed_bytes(needed), given_bytes(given) {}
  std::uint64_t needed_bytes;
  std::uint64_t given_bytes;
};

/// The operating system or the device refused or failed (Python: OSError).
class IoError : public Error {
 public:
  struct Details {
    std::string operation;  ///< "read", "write", "fsync", "open", …
    std::string path;       ///< file or device
    std::string block;      ///< name of the block, where there is one
    std::uint64_t offset = 0;
    std::uint64_t wanted = 0;  ///< bytes
    std::uint64_t got = 0;     ///< bytes
    int error = 0;             ///< errno; 0 when the result was short without one
    std::string advice;        ///< what to do, e.g. free space
  };
  explicit IoError(Details d);
  const Details& details() const { return details_; }

 private:
  Details details_;
};

/// Bytes on disk that are not what was written: damage, truncation, a file that lies (Python: OSError).
class DamageError : public Error {
 public:
  using Error::Error;
};

/// Another rank of the job is gone, stopped or failed; every rank left throws it (Python: RuntimeError). Nothing may be
/// communicated after it: leave the process, under MPI without MPI_Finalize (comm/communicator.h).
class RankLostError : public Error {
 public:
  RankLostError(const std::string& message, int lost_rank) : Error(message), rank(lost_rank) {}
  int rank;
};

}  // namespace transload
