// CommPeers: what the stores of many ranks need of each other, over the communicator. While no collective is under way.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "train/peers.h"

namespace transload {

class CommPeers final : public Peers {
 public:
  /// `communicator` outlives it.
  explicit CommPeers(Communicator& communicator) : communicator_(communicator) {}
  std::uint32_t rank() const override { return static_cast<std::uint32_t>(communicator_.rank()); }
  std::uint32_t count() const override { return static_cast<std::uint32_t>(communicator_.size()); }
  std::uint32_t local_rank() const override { return static_cast<std::uint32_t>(communicator_.place().local_rank); }
  std::vector<std::string> exchange(const std::string& mine) override { return communicator_.all_gather_strings(mine); }
  void broadcast(std::span<std::byte> data, std::uint32_t from) override {
    if (communicator_.tier() == Tier::host)
      return communicator_.broadcast(BlockView(data.data(), data.size()), static_cast<int>(from), stream_);
    // Collectives in device memory are of no use here; the control plane takes small pieces.
    std::vector<std::byte> all(count() * std::min(kPiece, data.size()));
    for (std::size_t at = 0; at < data.size(); at += kPiece) {
      const std::span<std::byte> piece = data.subspan(at, std::min(kPiece, data.size() - at));
      communicator_.exchange(piece, std::span(all).first(count() * piece.size()));
      std::copy_n(all.data() + from * piece.size(), piece.size(), piece.data());
    }
  }

 private:
  static constexpr std::size_t kPiece = 32 * 1024;
  Communicator& communicator_;
  InlineStream stream_;
};

}  // namespace transload
