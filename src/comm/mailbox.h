// Mailbox: how messages of bounded size go between all ranks, in rounds. In a round every rank begins, writes what it
// sends, posts it, takes what the others sent, and ends. Two rounds may be open: one is filled while the other is
// taken.
//
// Rounds are numbered from 0 by all ranks alike. Waiting ends in RankLostError when a rank is lost.
// Threading: one thread at a time. Buffers are taken at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace transload {

struct Round {
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;      ///< of each full message
  std::uint64_t stride = 0;     ///< the message for rank r begins at r × stride; 0: one message for all
  int root = -1;                ///< ≥ 0: only this rank's message is full, the others are
  std::uint64_t nod_bytes = 0;  ///< of this size
  std::uint64_t bytes_from(int rank) const { return root < 0 || rank == root ? bytes : nod_bytes; }
};

class Mailbox {
 public:
  virtual ~Mailbox() = default;
  /// What all messages of one rank and round may take together.
  virtual std::uint64_t room_bytes() const = 0;
  virtual std::uint64_t memory_bytes() const = 0;
  /// Where this rank writes its messages, 64-byte aligned; waits until those of two rounds ago have been taken.
  virtual std::byte* begin(const Round& round) = 0;
  virtual void post(const Round& round) = 0;
  /// The message of another rank for this one; waits for it. Valid until end.
  virtual const std::byte* take(const Round& round, int from) = 0;
  virtual void end(const Round& round) = 0;
};

}  // namespace transload
