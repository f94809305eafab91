// Reads blocks of a group of stores, whichever rank sees them.
//
// A store that every rank sees is read by whoever needs a block of it. Any other store is read by one rank that sees
// it, which broadcasts: then all ranks must read the same blocks of it in the same order (their lists may differ in
// what is wanted alone).
// Memory: the blocks read ahead, and one that is broadcast. Used by one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"
#include "train/block_reader.h"
#include "train/checkpoint.h"
#include "train/peers.h"

namespace transload {

/// The last commit of a group of stores, as one rank sees it. Owns nothing.
struct GroupView {
  static constexpr std::int64_t kEveryone = -1;

  std::vector<Store*> stores;         ///< by rank of the group; null where this process does not see it
  std::vector<std::int64_t> readers;  ///< of each: who reads and broadcasts it; kEveryone: all see it
  Peers* peers = nullptr;             ///< null: every store is seen by everyone
  CheckpointMeta meta;                ///< of the commit; its layout says some rank or other
  std::string where;                  ///< names the run in messages

  /// Of one store, that of a run of one rank.
  static GroupView of(Store& store, const std::string& where);
  /// Of the stores that the ranks have open, each its own.
  static GroupView of_ranks(Store& own, Peers& peers, const std::string& where);
};

class GroupReader {
 public:
  /// `view` and `layout`, the group's, must outlive the reader.
  GroupReader(const GroupView& view, const Layout& layout);

  struct Request {
    RankBlock block;
    bool wanted = true;  ///< by this rank
  };
  /// Calls fn(block, content) for the wanted ones of the blocks, in order, and for those that a broadcast says are
  /// damaged.
  using Deliver = std::function<void(const RankBlock&, const BlockReader::Content&)>;
  void read(const std::vector<Request>& requests, const Deliver& fn);

 private:
  bool shared(const RankBlock& b) const;
  bool read_here(const Request& request) const;
  BlockReader::Content broadcast(const RankBlock& b, const BlockReader::Content* own);

  const GroupView& view_;
  const Layout& layout_;
  std::vector<std::byte> received_;
};

}  // namespace transload
