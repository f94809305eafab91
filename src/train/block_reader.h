// Reads blocks of a store's last commit in a given order, some of them ahead. Used by one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"

namespace transload {

class BlockReader {
 public:
  /// `store` and `layout` must outlive the reader. Names in messages: "chunk 3 weight of step 12".
  BlockReader(Store& store, const Layout& layout, std::uint64_t step);
  ~BlockReader();

  /// Calls fn(block, bytes, error) for each of the blocks, in order. `error` says what was wrong with the block, and
  /// its bytes mean nothing then. A block that was never written is zeros.
  using Deliver = std::function<void(BlockId, const std::byte* bytes, const std::exception_ptr& error)>;
  void read(const std::vector<BlockId>& blocks, const Deliver& fn);

 private:
  class Buffer;
  Store& store_;
  const Layout& layout_;
  std::uint64_t step_;
};

}  // namespace transload
