#include "comm/host_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <functional>
#include <vector>

#include "base/check.h"
#include "base/size.h"
#include "comm/tree_sum.h"
#include "comm/view_copy.h"

namespace transload {
namespace {

enum class Kind : std::uint32_t { all_gather = 1, reduce_scatter, broadcast };

/// Begins every message: which collective of the plane, and where in it. Equal on all ranks.
struct Header {
  Kind kind{};
  std::uint32_t detail = 0;  ///< dtype or root
  std::uint64_t call = 0;    ///< collectives of this plane so far
  std::uint64_t bytes = 0;   ///< of the whole
  std::uint64_t offset = 0;  ///< of this piece
  std::int64_t chunk = -1;   ///< as published: chunks of one size are told apart
  std::array<std::byte, 24> padding{};
};
static_assert(sizeof(Header) == 64);

constexpr std::uint64_t kHeader = sizeof(Header);
constexpr std::uint64_t kAlign = 64;

}  // namespace

/// One plane's mailbox and what it has counted.
struct HostCommunicator::Plane {
  explicit Plane(Mailbox& mail) : mailbox(mail) {}
  Mailbox& mailbox;
  std::uint32_t round = 0;
  std::uint64_t call = 0;
};

/// One collective: `bytes` of each rank pass in pieces.
struct HostCommunicator::Transfer {
  Kind kind;
  std::uint32_t detail;
  std::uint64_t bytes;
  bool scattered = false;  ///< a message of its own for each rank
  int root = -1;
  std::int64_t chunk = -1;
  /// Writes bytes [offset, offset + n) for rank `to` (scattered), or for all.
  std::function<void(std::byte* message, int to, std::uint64_t offset, std::uint64_t n)> write;
  /// Scattered: where this rank's own bytes lie in one run, so that they need not be written; else null.
  std::function<const std::byte*(std::uint64_t offset, std::uint64_t n)> own;
  /// All messages of a piece are there; messages[own rank] is what this rank wrote.
  std::function<void(std::span<const std::byte* const> messages, std::uint64_t offset, std::uint64_t n)> read;

  void run(Plane& plane, int rank, int size);

 private:
  struct Piece {
    Round round;
    std::uint64_t offset, n;
    const std::byte* own;
  };
  Piece post(Plane& plane, int rank, int size, std::uint64_t offset, std::uint64_t most);
  void take(Plane& plane, int rank, int size, const Piece& piece);
  Header header(const Plane& plane, std::uint64_t offset) const {
    return {kind, detail, plane.call, bytes, offset, chunk, {}};
  }
};

HostCommunicator::Transfer::Piece HostCommunicator::Transfer::post(Plane& plane, int rank, int size,
                                                                   std::uint64_t offset, std::uint64_t most) {
  const std::uint64_t n = std::min(most, bytes - offset);
  const std::byte* const in_place = scattered ? own(offset, n) : nullptr;
  Piece piece{
      {plane.round++, kHeader + n, scattered ? round_up(kHeader + n, kAlign) : 0, root, kHeader}, offset, n, {}};
  std::byte* const messages = plane.mailbox.begin(piece.round);
  const Header head = header(plane, offset);
  for (int to = 0; to < (scattered ? size : 1); ++to) {
    std::byte* const message = messages + static_cast<std::uint64_t>(to) * piece.round.stride;
    if (to == rank && in_place != nullptr) continue;
    std::memcpy(message, &head, kHeader);
    if (root < 0 || root == rank) write(message + kHeader, to, offset, n);
  }
  piece.own =
      in_place != nullptr ? in_place : messages + static_cast<std::uint64_t>(rank) * piece.round.stride + kHeader;
  plane.mailbox.post(piece.round);
  return piece;
}

void HostCommunicator::Transfer::take(Plane& plane, int rank, int size, const Piece& piece) {
  const Header mine = header(plane, piece.offset);
  std::array<const std::byte*, kMostRanks> messages;
  for (int from = 0; from < size; ++from) {
    messages[static_cast<std::size_t>(from)] = piece.own;
    if (from == rank) continue;
    const std::byte* const message = plane.mailbox.take(piece.round, from);
    Header theirs;
    std::memcpy(&theirs, message, kHeader);
    TRANSLOAD_CHECK(
        std::memcmp(&theirs, &mine, kHeader) == 0,
        "rank {} is at collective {} (kind {}/{}, chunk {}, {} bytes, at {}), rank {} at {} (kind {}/{}, chunk {}, {} "
        "bytes, at {})",
        from, theirs.call, static_cast<int>(theirs.kind), theirs.detail, theirs.chunk, theirs.bytes, theirs.offset,
        rank, mine.call, static_cast<int>(kind), detail, chunk, bytes, mine.offset);
    messages[static_cast<std::size_t>(from)] = message + kHeader;
  }
  read({messages.data(), static_cast<std::size_t>(size)}, piece.offset, piece.n);
  plane.mailbox.end(piece.round);
}

void HostCommunicator::Transfer::run(Plane& plane, int rank, int size) {
  const std::uint64_t room = plane.mailbox.room_bytes();
  const std::uint64_t message = scattered ? room / static_cast<std::uint64_t>(size) / kAlign * kAlign : room;
  const std::uint64_t most = (message - kHeader) / kAlign * kAlign;
  if (bytes == 0) return;
  Piece piece = post(plane, rank, size, 0, most);
  for (std::uint64_t next = piece.n; next < bytes; next += piece.n) {
    const Piece following = post(plane, rank, size, next, most);
    take(plane, rank, size, piece);
    piece = following;
  }
  take(plane, rank, size, piece);
  ++plane.call;
}

HostCommunicator::HostCommunicator(Parts parts)
    : parts_(std::move(parts)),
      data_(std::make_unique<Plane>(*parts_.data)),
      control_(std::make_unique<Plane>(*parts_.control)) {
  TRANSLOAD_CHECK(size() <= kMostRanks, "{} ranks", size());
}

// The others may still be reading what this rank sent: it goes when all have come to their end, or are lost.
HostCommunicator::~HostCommunicator() {
  if (std::uncaught_exceptions() > 0) parts_.monitor->fail("it ended with an error.");
  parts_.monitor->leave();
  if (parts_.wire && parts_.monitor->lost()) parts_.wire->abandon();
  parts_.data.reset();
  parts_.control.reset();
  parts_.monitor.reset();
}

std::uint64_t HostCommunicator::memory_bytes() const {
  return parts_.data->memory_bytes() + parts_.control->memory_bytes();
}

void HostCommunicator::all_gather(const BlockView& in, const BlockView& out, Stream&) {
  const std::uint64_t shard = in.bytes();
  TRANSLOAD_CHECK(out.bytes() == shard * static_cast<std::uint64_t>(size()), "{} of {} bytes, room for {}", size(),
                  shard, out.bytes());
  const auto place_of = [&](int r) { return static_cast<std::uint64_t>(r) * shard; };
  Transfer transfer{Kind::all_gather, 0, shard};
  transfer.chunk = chunk_.load(std::memory_order_relaxed);
  transfer.write = [&](std::byte* message, int, std::uint64_t offset, std::uint64_t n) {
    in.copy_out(message, offset, offset + n);
  };
  transfer.read = [&](std::span<const std::byte* const> messages, std::uint64_t offset, std::uint64_t n) {
    for (int r = 0; r < size(); ++r)
      if (r != rank())
        out.copy_in(messages[static_cast<std::size_t>(r)], place_of(r) + offset, place_of(r) + offset + n);
    copy_part(in, offset, out, place_of(rank()) + offset, n);
  };
  transfer.run(*data_, rank(), size());
}

void HostCommunicator::reduce_scatter(const BlockView& in, const BlockView& out, Dtype pieces, Stream&) {
  const std::uint64_t shard = out.bytes();
  TRANSLOAD_CHECK(in.bytes() == shard * static_cast<std::uint64_t>(size()), "{} bytes for {} of {}", in.bytes(), size(),
                  shard);
  TRANSLOAD_CHECK(shard % size_of(pieces) == 0, "{} bytes of {}", shard, name_of(pieces));
  Transfer transfer{Kind::reduce_scatter, static_cast<std::uint32_t>(pieces), shard, true};
  transfer.chunk = chunk_.load(std::memory_order_relaxed);
  transfer.write = [&](std::byte* message, int to, std::uint64_t offset, std::uint64_t n) {
    const std::uint64_t begin = static_cast<std::uint64_t>(to) * shard + offset;
    in.copy_out(message, begin, begin + n);
  };
  transfer.own = [&](std::uint64_t offset, std::uint64_t n) {
    const std::uint64_t begin = static_cast<std::uint64_t>(rank()) * shard + offset;
    return in.contiguous(begin, begin + n);
  };
  transfer.read = [&](std::span<const std::byte* const> messages, std::uint64_t offset, std::uint64_t n) {
    std::array<const std::byte*, kMostRanks> at;
    out.for_each_run(offset, offset + n, [&](std::byte* data, std::uint64_t begin, std::uint64_t bytes) {
      for (std::size_t r = 0; r < messages.size(); ++r) at[r] = messages[r] + (begin - offset);
      tree_sum({at.data(), messages.size()}, data, bytes / size_of(pieces), pieces);
    });
  };
  transfer.run(*data_, rank(), size());
}

void HostCommunicator::broadcast(const BlockView& data, int root, Stream&) {
  Transfer transfer{Kind::broadcast, static_cast<std::uint32_t>(root), data.bytes(), false, root};
  transfer.write = [&](std::byte* message, int, std::uint64_t offset, std::uint64_t n) {
    data.copy_out(message, offset, offset + n);
  };
  transfer.read = [&](std::span<const std::byte* const> messages, std::uint64_t offset, std::uint64_t n) {
    if (rank() != root) data.copy_in(messages[static_cast<std::size_t>(root)], offset, offset + n);
  };
  transfer.run(*data_, rank(), size());
}

void HostCommunicator::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  TRANSLOAD_CHECK(all.size() == mine.size() * static_cast<std::size_t>(size()), "{} of {} bytes, room for {}", size(),
                  mine.size(), all.size());
  Transfer transfer{Kind::all_gather, 0, mine.size()};
  transfer.write = [&](std::byte* message, int, std::uint64_t offset, std::uint64_t n) {
    std::memcpy(message, mine.data() + offset, n);
  };
  transfer.read = [&](std::span<const std::byte* const> messages, std::uint64_t offset, std::uint64_t n) {
    for (std::size_t r = 0; r < messages.size(); ++r)
      std::memcpy(all.data() + r * mine.size() + offset, messages[r], n);
  };
  transfer.run(*control_, rank(), size());
}

void HostCommunicator::publish(const Status& status) {
  chunk_.store(status.chunk, std::memory_order_relaxed);
  parts_.monitor->publish(status);
}
void HostCommunicator::fail(const std::string& why) { parts_.monitor->fail(why); }

}  // namespace transload
