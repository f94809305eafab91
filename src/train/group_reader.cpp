#include "train/group_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace transload {
namespace {

/// Goes before a block that is broadcast.
struct Header {
  enum State : std::uint8_t { zeros, written, damaged };
  State state = zeros;
  std::array<char, 1023> text{};  // what is wrong with it
};
static_assert(sizeof(Header) == 1024);

Header header_of(const BlockReader::Content& content) {
  Header header;
  header.state = content.written ? Header::written : Header::zeros;
  if (!content.error) return header;
  header.state = Header::damaged;
  try {
    std::rethrow_exception(content.error);
  } catch (const std::exception& error) {
    std::strncpy(header.text.data(), error.what(), header.text.size() - 1);
  }
  return header;
}

}  // namespace

GroupView GroupView::of(Store& store, const std::string& where) {
  return {{&store}, {kEveryone}, nullptr, parse_meta(store.committed().metadata, where), where};
}

GroupView GroupView::of_ranks(Store& own, Peers& peers, const std::string& where) {
  GroupView view = of(own, where);
  view.stores.assign(peers.count(), nullptr);
  view.stores[peers.rank()] = &own;
  view.readers.clear();
  for (std::uint32_t r = 0; r < peers.count(); ++r) view.readers.push_back(r);
  view.peers = &peers;
  return view;
}

GroupReader::GroupReader(const GroupView& view, const Layout& layout) : view_(view), layout_(layout) {}

bool GroupReader::shared(const RankBlock& b) const { return view_.readers[b.rank] != GroupView::kEveryone; }

bool GroupReader::read_here(const Request& request) const {
  if (!shared(request.block)) return request.wanted;
  return view_.readers[request.block.rank] == static_cast<std::int64_t>(view_.peers->rank());
}

void GroupReader::read(const std::vector<Request>& requests, const Deliver& fn) {
  std::vector<RankBlock> here;
  for (const Request& request : requests)
    if (read_here(request)) here.push_back(request.block);
  BlockReader reader(view_.stores, layout_, view_.meta.step, std::move(here));
  for (const Request& request : requests) {
    const bool from_here = read_here(request);
    if (!from_here && !shared(request.block)) continue;
    BlockReader::Content content;
    if (from_here) content = reader.next();
    if (shared(request.block)) content = broadcast(request.block, from_here ? &content : nullptr);
    // Damage ends what all ranks do together on all of them.
    if (request.wanted || content.error) fn(request.block, content);
  }
}

BlockReader::Content GroupReader::broadcast(const RankBlock& b, const BlockReader::Content* own) {
  const auto from = static_cast<std::uint32_t>(view_.readers[b.rank]);
  const std::uint64_t bytes = layout_.blocks()[b.block.value].bytes;
  Header header = own != nullptr ? header_of(*own) : Header();
  view_.peers->broadcast({reinterpret_cast<std::byte*>(&header), sizeof header}, from);
  received_.resize(std::max<std::size_t>(received_.size(), bytes));
  if (header.state == Header::written) {
    if (own != nullptr) std::memcpy(received_.data(), own->bytes, bytes);
    view_.peers->broadcast({received_.data(), bytes}, from);
  } else if (header.state == Header::zeros) {
    std::fill_n(received_.data(), bytes, std::byte{0});
  }
  BlockReader::Content content{received_.data(), header.state == Header::written, nullptr};
  if (header.state == Header::damaged) content.error = std::make_exception_ptr(DamageError(header.text.data()));
  return content;
}

}  // namespace transload
