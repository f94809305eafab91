// A file that is read with pread, never mapped (mapped pages count as memory). Movable, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace transload {

class InputFile {
 public:
  /// InputError: missing or not a regular file; IoError otherwise.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept : path_(std::move(other.path_)), size_(other.size_), fd_(other.fd_) {
    other.fd_ = -1;
  }
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// All of [offset, offset + bytes), or IoError.
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const;
  /// xxh3-64 of the size and of up to 64 pieces of 64 KiB, first and last among them: all of a small file.
  std::uint64_t sampled_hash() const;

 private:
  std::string path_;
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

/// A whole text file of at most `limit` bytes; InputError above it.
std::string read_text_file(const std::string& path, std::uint64_t limit);

}  // namespace transload
