#include "train/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace transload {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw InputError(fmt::format("{} cannot be opened: {}.", path_, std::strerror(errno)));
  struct stat facts = {};
  if (::fstat(fd_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(fd_);
    throw InputError(fmt::format("{} is not a regular file.", path_));
  }
  size_ = static_cast<std::uint64_t>(facts.st_size);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
  std::uint64_t got = 0;
  while (got < bytes) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(to) + got, bytes - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw IoError({.operation = "read",
                     .path = path_,
                     .block = {},
                     .offset = offset,
                     .wanted = bytes,
                     .got = got,
                     .error = n < 0 ? errno : 0,
                     .advice = n < 0 ? "" : "The file has been cut short while in use."});
    got += static_cast<std::uint64_t>(n);
  }
}

std::uint64_t InputFile::sampled_hash() const {
  constexpr std::uint64_t kPiece = 64 * 1024, kPieces = 64;
  std::vector<char> piece(kPiece);
  std::uint64_t hash = XXH3_64bits(&size_, sizeof size_);
  const std::uint64_t pieces = std::min(kPieces, (size_ + kPiece - 1) / kPiece);
  for (std::uint64_t i = 0; i < pieces; ++i) {
    // Evenly spread starts; below 64 pieces they are neighbours, the last one may overlap.
    const std::uint64_t last = size_ > kPiece ? size_ - kPiece : 0;
    const std::uint64_t begin = pieces < 2 ? 0 : last / (pieces - 1) * i + last % (pieces - 1) * i / (pieces - 1);
    const std::uint64_t bytes = std::min(kPiece, size_ - begin);
    read(begin, piece.data(), bytes);
    hash = XXH3_64bits_withSeed(piece.data(), bytes, hash);
  }
  return hash;
}

std::string read_text_file(const std::string& path, std::uint64_t limit) {
  const InputFile file(path);
  if (file.size() > limit)
    throw InputError(fmt::format("{} has {} bytes; a file of this kind has at most {}.", path, file.size(), limit));
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace transload
