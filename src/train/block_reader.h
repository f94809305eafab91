// Reads blocks of stores' last commits in a given order, some of them ahead. Used by one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"

namespace transload {

/// A block of a layout in the store of one rank.
struct RankBlock {
  std::uint32_t rank = 0;
  BlockId block;
};

class BlockReader {
 public:
  /// `stores` by rank (of ranks that are read from; the others may be null) and `layout` must outlive the reader.
  /// Names in messages: "chunk 3 weight of step 12", of several ranks "chunk 3 weight of rank 1, step 12".
  BlockReader(const std::vector<Store*>& stores, const Layout& layout, std::uint64_t step,
              std::vector<RankBlock> blocks);
  ~BlockReader();

  /// A block's bytes; they are there until the next call of next. `error` says what was wrong with the block, and its
  /// bytes mean nothing then. A block that was never written is zeros.
  struct Content {
    const std::byte* bytes = nullptr;
    bool written = false;
    std::exception_ptr error;
  };
  /// The next of the blocks; not to be called after the last one.
  Content next();

 private:
  class Buffer;
  void begin(std::size_t i);

  const std::vector<Store*>& stores_;
  const Layout& layout_;
  const std::uint64_t step_;
  const std::vector<RankBlock> blocks_;
  std::vector<std::unique_ptr<Buffer>> ring_;
  std::size_t next_ = 0;
};

/// Of the largest of the blocks, rounded up for direct I/O.
std::uint64_t largest_bytes(const Layout& layout, const std::vector<RankBlock>& blocks);
std::string block_name(const Layout& layout, RankBlock block, std::uint64_t step);

}  // namespace transload
