// A file of the user's that is read with pread, never mapped (mapped pages count as memory). Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/os.h"

namespace transload {

class InputFile {
 public:
  /// InputError: missing or not a regular file; IoError otherwise.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return size_; }
  /// All of [offset, offset + bytes), or IoError.
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const { file_.read_or_throw(to, bytes, offset); }
  /// xxh3-64 of the size and of up to 64 pieces of 64 KiB, first and last among them: all of a small file.
  std::uint64_t sampled_hash() const;

 private:
  os::File file_;
  std::uint64_t size_ = 0;
};

/// Whether something, or a folder, has this path; IoError where that cannot be known.
bool path_exists(const std::string& path);
bool is_folder(const std::string& path);
/// A whole text file of at most `limit` bytes; InputError above it.
std::string read_text_file(const std::string& path, std::uint64_t limit);

}  // namespace transload
