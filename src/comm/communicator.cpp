#include "comm/communicator.h"

#include <cstring>

namespace transload {

void Communicator::barrier() { (void)agree(true); }

std::vector<std::string> Communicator::all_gather_strings(const std::string& mine) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  exchange(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::uint64_t most = 0;
  for (const std::uint64_t n : lengths) most = std::max(most, n);
  std::string padded = mine, all(most * lengths.size(), '\0');
  padded.resize(most);
  exchange(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> strings;
  for (std::size_t r = 0; r < lengths.size(); ++r) strings.push_back(all.substr(r * most, lengths[r]));
  return strings;
}

std::string Communicator::broadcast_string(const std::string& text, int root) {
  return all_gather_strings(rank() == root ? text : std::string())[static_cast<std::size_t>(root)];
}

void Communicator::sum(std::span<std::int64_t> values) {
  std::vector<std::uint64_t> all(values.size() * static_cast<std::size_t>(size()));
  exchange(std::as_bytes(values), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t total = 0;
    for (std::size_t at = i; at < all.size(); at += values.size()) total += all[at];
    values[i] = static_cast<std::int64_t>(total);
  }
}

bool Communicator::agree(bool mine) {
  const std::byte word{mine};
  std::vector<std::byte> all(static_cast<std::size_t>(size()));
  exchange(std::span(&word, 1), all);
  for (const std::byte one : all)
    if (one == std::byte{0}) return false;
  return true;
}

}  // namespace transload
