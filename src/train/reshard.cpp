#include "train/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "train/committed_state.h"

namespace transload {
namespace {

using Requests = std::vector<GroupReader::Request>;

/// Trainable chunks, then frozen ones: within each, parameters ascend.
std::vector<ChunkId> in_order(const Layout& layout) {
  std::vector<ChunkId> order;
  for (const bool frozen : {false, true})
    for (std::size_t c = 0; c < layout.chunks().size(); ++c)
      if (layout.chunks()[c].frozen == frozen) order.push_back(ChunkId(c));
  return order;
}

void check_same(const Layout& from, const Layout& to, const std::string& where) {
  const auto differs = [&](const std::string& what) {
    throw InputError(fmt::format("The state of {} is of another model: {}.", where, what));
  };
  if (from.params().size() != to.params().size())
    differs(fmt::format("{} parameters instead of {}", from.params().size(), to.params().size()));
  for (std::size_t p = 0; p < to.params().size(); ++p) {
    const ParamSpec &a = from.params()[p], &b = to.params()[p];
    if (a.name != b.name || a.shape != b.shape) differs(fmt::format("{} where {} was expected", a.name, b.name));
    if (a.frozen != b.frozen) differs(fmt::format("{} is {}", a.name, a.frozen ? "frozen" : "trained"));
  }
  for (const PlaneSpec& plane : to.planes()) {
    if (!plane.durable) continue;
    const int q = from.plane(plane.name);
    if (q < 0 || from.planes()[static_cast<std::size_t>(q)].dtype != plane.dtype)
      differs(fmt::format("it has no {} in {}", plane.name, name_of(plane.dtype)));
  }
}

/// One plane of this rank's new shards, written in ascending order of parameters.
class PlaneWriter {
 public:
  PlaneWriter(const Layout& layout, int plane, Engine& engine, Stream& stream)
      : layout_(layout),
        plane_(plane),
        element_bytes_(size_of(layout.planes()[static_cast<std::size_t>(plane)].dtype)),
        engine_(engine),
        stream_(stream),
        by_param_(layout.params().size()) {
    for (const ChunkId c : in_order(layout)) {
      if (!layout.block(c, plane).valid()) continue;
      position_[c.value] = order_.size();
      order_.push_back(c);
      for (const Piece& piece : layout.shard_pieces(c)) by_param_[piece.param.value].push_back(piece);
    }
  }

  /// Whether some of the elements are this rank's.
  bool wants(const std::vector<Piece>& pieces) const {
    return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      const auto [first, last] = overlapping(piece);
      return first != last;
    });
  }

  /// Elements of an old shard.
  void add(const std::vector<Piece>& pieces, const std::byte* data) {
    for (const Piece& piece : pieces) {
      const auto [first, last] = overlapping(piece);
      for (auto mine = first; mine != last; ++mine) copy(piece, *mine, data);
    }
  }

  /// Blocks of which nothing was written are zeros.
  void finish() { open(order_.size()); }

 private:
  using PieceAt = std::vector<Piece>::const_iterator;

  std::pair<PieceAt, PieceAt> overlapping(const Piece& piece) const {
    const std::vector<Piece>& all = by_param_[piece.param.value];
    const auto first = std::upper_bound(all.begin(), all.end(), piece.param_begin,
                                        [](std::uint64_t at, const Piece& p) { return at < p.param_begin + p.count; });
    const auto last = std::lower_bound(first, all.end(), piece.param_begin + piece.count,
                                       [](const Piece& p, std::uint64_t end) { return p.param_begin < end; });
    return {first, last};
  }

  void copy(const Piece& piece, const Piece& mine, const std::byte* data) {
    open(position_.at(mine.chunk.value));
    if (!pin_.held()) pin();
    const std::uint64_t begin = std::max(piece.param_begin, mine.param_begin);
    const std::uint64_t end = std::min(piece.param_begin + piece.count, mine.param_begin + mine.count);
    const std::uint64_t from = piece.chunk_begin + (begin - piece.param_begin);
    const std::uint64_t to = mine.chunk_begin + (begin - mine.param_begin);
    pin_.view.copy_in(data + from * element_bytes_, to * element_bytes_, (to + (end - begin)) * element_bytes_);
  }

  /// Leaves the chunks before the `next`th one as they are to stay.
  void open(std::size_t next) {
    TRANSLOAD_CHECK(at_ <= next, "elements of chunk {} after those of chunk {}", next, at_);
    for (; at_ < next; ++at_) {
      if (pin_.held())
        engine_.unpin(std::move(pin_), stream_);
      else
        engine_.set_zero(layout_.block(order_[at_], plane_));
    }
  }

  void pin() {
    pin_ = engine_.pin(layout_.block(order_[at_], plane_), Tier::host, AccessKind::write);
    pin_.ready.wait();
    pin_.view.zero(0, pin_.view.bytes());
  }

  const Layout& layout_;
  const int plane_;
  const std::uint64_t element_bytes_;
  Engine& engine_;
  Stream& stream_;
  std::vector<ChunkId> order_;
  std::unordered_map<std::uint32_t, std::size_t> position_;  // in order_
  std::vector<std::vector<Piece>> by_param_;
  std::size_t at_ = 0;  // of order_: the chunk that elements go to
  Pin pin_;
};

class Resharding {
 public:
  Resharding(const GroupView& from, const Layout& to, Engine& engine, Stream& stream, const Progress& progress)
      : old_(layout_of(from.meta, from.where)),
        new_(to),
        reader_(from, old_),
        engine_(engine),
        stream_(stream),
        progress_(progress) {
    check_same(old_, new_, from.where);
  }

  void run() {
    for (const PlaneSpec& plane : new_.planes())
      if (plane.durable) count(plane.name);
    for (const PlaneSpec& plane : new_.planes())
      if (plane.durable) copy(plane.name);
    stream_.synchronize();
  }

 private:
  /// Every block of an old plane that has elements, and whether this rank wants it.
  Requests requests(const std::string& plane, const PlaneWriter& writer) const {
    Requests requests;
    for (const ChunkId c : in_order(old_)) {
      const BlockId block = old_.block(c, old_.plane(plane));
      if (!block.valid()) continue;
      for (std::uint32_t rank = 0; rank < old_.shards().count; ++rank)
        if (const std::vector<Piece> pieces = old_.shard_pieces(c, rank); !pieces.empty())
          requests.push_back({{rank, block}, writer.wants(pieces)});
    }
    return requests;
  }

  void count(const std::string& plane) {
    const PlaneWriter writer(new_, new_.plane(plane), engine_, stream_);
    for (const GroupReader::Request& r : requests(plane, writer))
      if (r.wanted) total_bytes_ += old_.blocks()[r.block.block.value].bytes;
  }

  void copy(const std::string& plane) {
    PlaneWriter writer(new_, new_.plane(plane), engine_, stream_);
    reader_.read(requests(plane, writer), [&](const RankBlock& b, const BlockReader::Content& content) {
      if (content.error) std::rethrow_exception(content.error);
      engine_.rethrow_if_failed();
      if (content.written) writer.add(old_.shard_pieces(old_.chunk_of(b.block), b.rank), content.bytes);
      done_bytes_ += old_.blocks()[b.block.value].bytes;
      if (progress_) progress_(done_bytes_, total_bytes_);
    });
    writer.finish();
  }

  const Layout old_;
  const Layout& new_;
  GroupReader reader_;
  Engine& engine_;
  Stream& stream_;
  const Progress& progress_;
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace

void reshard(const GroupView& from, const Layout& to, Engine& engine, Stream& stream, const Progress& progress) {
  Resharding(from, to, engine, stream, progress).run();
}

}  // namespace transload
