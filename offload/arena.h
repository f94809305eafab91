// Arena: one mapping of a tier's memory, taken at start-up. 2 MiB-aligned, huge pages where the kernel gives them.
// Owner of the memory; frames and workspace are cut from it by Frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace transload {

class Arena {
 public:
  /// BudgetError when the mapping is refused. populate: touch every page now (and find out now if it is not there).
  Arena(std::uint64_t bytes, bool populate);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Why huge pages were not asked for; empty when they were.
  const std::string& huge_page_reason() const { return reason_; }

 private:
  std::byte* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_;
  std::string reason_;
};

}  // namespace transload
