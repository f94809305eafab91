#include "chunk/chunk_search.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/size.h"

namespace transload {

namespace {

/// What one transfer costs beside its bytes (request, completion, checksum start, bookkeeping), in bytes of transfer:
/// about 10 µs at 3 GB/s. It is why all else being equal fewer, larger blocks win.
constexpr std::uint64_t kTransferOverhead = 32 * KiB;

struct Candidate {
  ChunkChoice choice;
  std::uint64_t blocks = 0;
};

/// Bytes that a step pays: moved, wasted room (which is moved sooner or later), and the overhead of each transfer.
std::uint64_t score(const Candidate& c) {
  return c.choice.moved_bytes + c.choice.waste_bytes +
         (c.blocks + c.choice.moved_bytes / c.choice.chunk_bytes) * kTransferOverhead;
}

}  // namespace

std::uint64_t waste_bytes(const Layout& layout) {
  const std::uint64_t frame = frame_bytes_for(layout.chunk_bytes());
  std::uint64_t in_frames = 0, in_pieces = 0;
  for (const BlockSpec& b : layout.blocks()) in_frames += round_up(b.bytes, frame);
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    std::uint64_t elements = 0;
    for (const Piece& piece : layout.chunks()[c].pieces) elements += piece.count;
    for (std::size_t q = 0; q < layout.planes().size(); ++q)
      if (layout.block(ChunkId(c), static_cast<int>(q)).valid())
        in_pieces += elements * size_of(layout.planes()[q].dtype);
  }
  return in_frames - in_pieces;
}

ChunkChoice search_chunk_size(const ChunkSearch& search) {
  std::optional<Candidate> best;
  std::uint64_t least_needed = UINT64_MAX, least_size = 0;
  // From large to small, so that the number of blocks grows.
  for (std::uint64_t size = kMaxChunkBytes; size >= kMinChunkBytes; size /= 2) {
    const std::uint64_t needed = search.least_host_bytes(size);
    if (needed < least_needed) {
      least_needed = needed;
      least_size = size;
    }
    if (needed > search.host_bytes) continue;
    const Layout layout(*search.params, *search.planes, size);
    if (best && layout.blocks().size() > search.max_blocks) continue;
    const Candidate candidate{{size, search.cost(size), waste_bytes(layout)}, layout.blocks().size()};
    if (!best || score(candidate) < score(*best)) best = candidate;
  }
  if (!best)
    throw BudgetError(fmt::format("The host memory budget of {} bytes is too small for every chunk size: chunks of {} "
                                  "KiB need least, {} bytes. Give at least that much.",
                                  search.host_bytes, least_size / KiB, least_needed),
                      least_needed, search.host_bytes);
  return best->choice;
}

}  // namespace transload
