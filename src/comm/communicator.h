// Communicator: the collectives on chunk-sized buffers. One process here; MPI, TCP and NCCL join the same contract.
// A gather of one rank is the shard itself: callers ask `gathered_is_shard()` and then neither copy nor take room.
#pragma once

#include <cstdint>

#include "base/event.h"

namespace transload {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// True for one rank: what a shard holds is what computation pins.
  bool gathered_is_shard() const { return size() == 1; }
  /// out[size × bytes] ← every rank's in[bytes], by rank.
  virtual Event all_gather(const std::byte* in, std::uint64_t bytes, std::byte* out) = 0;
  /// out[elements] ← this rank's part of Σ over ranks of in[size × elements] (fp32, fixed binary tree by rank).
  virtual Event reduce_scatter(const float* in, std::uint64_t elements, float* out) = 0;
};

class OneProcess final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Event all_gather(const std::byte* in, std::uint64_t bytes, std::byte* out) override;
  Event reduce_scatter(const float* in, std::uint64_t elements, float* out) override;
};

}  // namespace transload
