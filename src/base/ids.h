// Distinct integer types for the things that are counted, so that a chunk's index cannot be passed for a block's.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace transload {

template <class Tag>
struct Id {
  std::uint32_t value = UINT32_MAX;

  constexpr Id() = default;
  constexpr explicit Id(std::uint64_t v) : value(static_cast<std::uint32_t>(v)) {}
  constexpr bool valid() const { return value != UINT32_MAX; }
  auto operator<=>(const Id&) const = default;
};

using ParamId = Id<struct ParamTag>;  ///< index into Layout::params
using ChunkId = Id<struct ChunkTag>;  ///< index into Layout::chunks
using BlockId = Id<struct BlockTag>;  ///< index into the table of blocks (BlockSpec)
using SlotId = Id<struct SlotTag>;    ///< a place in the store's files

enum class Tier : std::uint8_t { device = 0, host = 1, nvme = 2 };
inline constexpr int kTiers = 3;
inline constexpr const char* name_of(Tier t) {
  return t == Tier::device ? "device" : t == Tier::host ? "host" : "nvme";
}

}  // namespace transload

template <class Tag>
struct std::hash<transload::Id<Tag>> {
  std::size_t operator()(const transload::Id<Tag>& id) const noexcept { return id.value; }
};
