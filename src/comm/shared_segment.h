// SharedSegment: memory that all ranks of one node map. Rank 0 makes it in /dev/shm, the others attach, and then its
// name is removed: nothing is left behind, however the ranks end. Its pages are taken at once, so that no touch can
// fail later. While it has a name its maker holds a lock on it: at the next start what has a name of ours and no lock
// is removed (a job that was killed while it started).
//
// Ownership: the mapping is this object's. All functions answer a reason instead of throwing: there is a fall-back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/os.h"

namespace transload {

class SharedSegment {
 public:
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  /// Rank 0. The reason why not; empty: made, full of zeros. `folder`: where, for tests.
  std::string create(std::uint64_t bytes, const std::string& folder = "/dev/shm");
  /// The others, by path().
  std::string attach(const std::string& path, std::uint64_t bytes);
  /// Rank 0, when all have attached or given up.
  void remove_name();

  const std::string& path() const { return path_; }
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::string map(std::uint64_t bytes);
  void swap(SharedSegment& other) noexcept;
  std::string path_;
  os::File file_;  ///< rank 0, while it has a name: holds the lock
  bool named_ = false;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Removes what jobs of this user that are gone have left in `folder`; how many.
int remove_leftovers(const std::string& folder);

}  // namespace transload
