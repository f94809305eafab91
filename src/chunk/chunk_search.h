// Chunk-size search: which power of two from 256 KiB to 64 MiB moves least and wastes least. Pure and deterministic:
// equal inputs give the same size.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "chunk/layout.h"

namespace transload {

inline constexpr std::uint64_t kMinChunkBytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{64} << 20;

struct ChunkSearch {
  const std::vector<ParamSpec>* params = nullptr;
  const std::vector<PlaneSpec>* planes = nullptr;
  std::uint64_t host_bytes = 0;
  /// The least host budget with chunks of this size: pinned panels, workspace and a transfer a link.
  std::function<std::uint64_t(std::uint64_t chunk_bytes)> least_host_bytes;
  /// Bytes moved a step with chunks of this size. Asked only for sizes that fit the budget.
  std::function<std::uint64_t(std::uint64_t chunk_bytes)> cost;
  /// Planning time grows with the number of blocks: smaller chunks are tried only where nothing else fits.
  std::uint64_t max_blocks = 50'000;
};

struct ChunkChoice {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t moved_bytes = 0;  ///< a step
  std::uint64_t waste_bytes = 0;  ///< padding inside chunks and the empty ends of frames
};

/// Padding and the empty ends of frames when every block of the layout lies in memory.
std::uint64_t waste_bytes(const Layout& layout);

/// BudgetError where no size fits; it says what the size that needs least would need.
ChunkChoice search_chunk_size(const ChunkSearch& search);

}  // namespace transload
