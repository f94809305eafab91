// SharedMailbox: messages through shared memory. Each rank has two slots there, for even and odd rounds, and two
// counters: rounds it has posted, and rounds it has taken from all. A slot is written again when all have taken what
// was in it. Sleepers wait on the counters (futex) and look every 100 ms whether a rank is lost.
//
// Ownership: the segment is shared by the mailboxes that lie in it.
#pragma once

#include <atomic>
#include <memory>

#include "comm/mailbox.h"
#include "comm/monitor.h"
#include "comm/shared_segment.h"

namespace transload {

class SharedMailbox final : public Mailbox {
 public:
  /// What a mailbox takes of the segment, for all ranks.
  static std::uint64_t bytes_for(int size, std::uint64_t room_bytes);
  /// It lies at `begin` (full of zeros at first) of the segment that `keep` keeps.
  SharedMailbox(std::byte* begin, int rank, int size, std::uint64_t room_bytes, Monitor& monitor,
                std::shared_ptr<SharedSegment> keep);

  std::uint64_t room_bytes() const override { return room_bytes_; }
  std::uint64_t memory_bytes() const override;
  std::byte* begin(const Round& round) override;
  void post(const Round& round) override;
  const std::byte* take(const Round& round, int from) override;
  void end(const Round& round) override;

 private:
  struct Counters;
  Counters& counters(int rank) const;
  std::byte* slot(int rank, std::uint32_t round) const;
  void await(std::atomic<std::uint32_t>& counter, std::uint32_t target, int whose);

  std::byte* const begin_;
  const int rank_, size_;
  const std::uint64_t room_bytes_;
  Monitor& monitor_;
  const std::shared_ptr<SharedSegment> keep_;
};

}  // namespace transload
