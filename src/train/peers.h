// Peers: what the stores of many ranks need of each other: small texts of all to all, bytes of one to all.
//
// Lockstep: every rank makes the same calls in the same order. A call throws where a rank is lost; what the others
// decided is unknown then.
// Threading: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace transload {

class Peers {
 public:
  virtual ~Peers() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t count() const = 0;
  virtual std::uint32_t local_rank() const = 0;  ///< among the ranks of this machine
  /// Every rank's text, by rank; at most 64 KiB each.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;
  /// The bytes of rank `from`, in everyone's `data`.
  virtual void broadcast(std::span<std::byte> data, std::uint32_t from) = 0;
};

/// A run of one rank.
class OnePeer final : public Peers {
 public:
  std::uint32_t rank() const override { return 0; }
  std::uint32_t count() const override { return 1; }
  std::uint32_t local_rank() const override { return 0; }
  std::vector<std::string> exchange(const std::string& mine) override { return {mine}; }
  void broadcast(std::span<std::byte>, std::uint32_t) override {}
};

}  // namespace transload
