#include "train/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"

namespace transload {

InputFile::InputFile(const std::string& path) {
  const os::PathKind kind = os::kind_of(path);
  if (kind == os::PathKind::missing) throw InputError(fmt::format("{} does not exist.", path));
  if (kind == os::PathKind::folder || kind == os::PathKind::other)
    throw InputError(fmt::format("{} is not a regular file.", path));
  file_ = os::File::open_or_throw(path, O_RDONLY);
  const std::int64_t size = file_.size();
  if (size < 0) throw IoError({"stat", path, "", 0, 0, 0, static_cast<int>(-size), ""});
  size_ = static_cast<std::uint64_t>(size);
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

namespace {

os::PathKind known_kind(const std::string& path) {
  const os::PathKind kind = os::kind_of(path);
  if (kind == os::PathKind::unreachable) {
    std::vector<std::string> names;  // for the error's number alone
    const std::int64_t result = os::list_folder(path, &names);
    throw IoError({"stat", path, "", 0, 0, 0, result < 0 ? static_cast<int>(-result) : EIO, ""});
  }
  return kind;
}

}  // namespace

bool path_exists(const std::string& path) { return known_kind(path) != os::PathKind::missing; }
bool is_folder(const std::string& path) { return known_kind(path) == os::PathKind::folder; }

std::string read_text_file(const std::string& path, std::uint64_t limit) {
  const InputFile file(path);
  if (file.size() > limit)
    throw InputError(fmt::format("{} has {} bytes; a file of this kind has at most {}.", path, file.size(), limit));
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace transload
