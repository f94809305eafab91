// Communicator: the collectives on chunk-sized blocks, and small exchanges beside them. One process, ranks of one node
// through shared memory, TCP, MPI and NCCL join one contract (tests/comm/contract.h).
//
// Data plane: all_gather, reduce_scatter, broadcast. Called in tasks of one stream (or by one thread), as Device::copy
// is; host transports have done the work when the call returns, NCCL has issued it to the stream. Asynchronous because
// streams are; in flight at most what the stream holds and two pieces of bounded size a rank (memory_bytes()).
// Control plane: exchange() and what is built on it. Called by one other thread, also while collectives run.
// Every rank issues the same calls of a plane in the same order; each message carries what it belongs to, so a rank
// that does not is found (a bug of ours: it aborts).
//
// Sums are taken over ranks in a fixed binary tree by rank number in fp32 (tree_sum.h): the same bits for every
// transport, whatever arrives first.
//
// A rank that dies, stops (no heartbeat for `timeout`; a thread of its own sends them, so long computation is none) or
// calls fail(): every waiting and every later call of every other rank throws RankLostError with that rank and what it
// was doing. A rank that lives but does not come to an operation is waited for ten times as long. After the error the
// destructor does not wait for anyone; under MPI it does not finalize: write the message, then leave the process by
// std::_Exit, so that no handler at exit does either. An error of a rank's own: fail(why), then the destructor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/block_view.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "offload/stream.h"

namespace transload {

/// Where this process stands in the job. "Local": among the ranks of its node.
struct Place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
};

enum class Reduction : std::uint8_t { tree, library };

struct CommOptions {
  std::uint64_t largest_bytes = 0;  ///< gathered bytes of the largest collective: buffers need not be larger
  std::chrono::milliseconds timeout{60'000};
  Reduction reduction = Reduction::tree;  ///< library: NCCL's own sums, whose bits depend on the topology
  bool shared_memory = true;              ///< where all ranks are on one node
};

/// What a rank is doing, for those who lose it.
struct Status {
  std::uint64_t step = 0;
  std::int64_t chunk = -1;     ///< −1: none
  const char* operation = "";  ///< a literal: kept by address until the next one
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return place().rank; }
  int size() const { return place().size; }
  virtual const Place& place() const = 0;
  /// True for one rank: what a shard holds is what computation pins; gathers copy nothing then.
  bool gathered_is_shard() const { return size() == 1; }
  /// "one process", "shared memory", "TCP", "MPI", "NCCL".
  virtual const char* transport() const = 0;
  /// Why no faster transport is in use; empty where none was refused.
  virtual std::string note() const { return {}; }
  /// Where the blocks of the data plane lie: host, or device (NCCL).
  virtual Tier tier() const { return Tier::host; }
  /// Buffers of this rank, in that tier, taken at construction. The caller charges them.
  virtual std::uint64_t memory_bytes() const = 0;

  /// out ← every rank's `in`, by rank; out.bytes() == size × in.bytes(). `in` may be this rank's part of `out`.
  virtual void all_gather(const BlockView& in, const BlockView& out, Stream& stream) = 0;
  /// out ← Σ over ranks of their in's part of this rank, rounded once to `pieces` (f32 or bf16, which both have; NaN
  /// becomes 0x7FC00000 or 0x7FC0); in.bytes() == size × out.bytes(). `out` may be this rank's part of `in`.
  virtual void reduce_scatter(const BlockView& in, const BlockView& out, Dtype pieces, Stream& stream) = 0;
  /// data ← root's.
  virtual void broadcast(const BlockView& data, int root, Stream& stream) = 0;

  /// all ← every rank's `mine`, by rank; all.size() == size × mine.size().
  virtual void exchange(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Built on exchange.
  void barrier();
  std::vector<std::string> all_gather_strings(const std::string& mine);
  std::string broadcast_string(const std::string& text, int root);
  /// values ← their sums over ranks (two's complement; exact while they fit).
  void sum(std::span<std::int64_t> values);
  /// True where all say so.
  bool agree(bool mine);

  /// Any thread; cheap.
  virtual void publish(const Status& status) { (void)status; }
  /// This rank ends with an error: the others are told at once, and why.
  virtual void fail(const std::string& why) { (void)why; }
};

std::unique_ptr<Communicator> make_one_process();

}  // namespace transload
