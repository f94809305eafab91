#include "base/os.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/size.h"

namespace transload::os {
namespace {

std::int64_t answer(std::int64_t result) { return result < 0 ? -static_cast<std::int64_t>(errno) : result; }

/// The interceptor's answer, or the call's.
template <class Call>
std::int64_t guarded(const IoOp& op, Call&& call) {
  if (const auto said = intercept(op)) return std::min<std::int64_t>(*said, 0);
  return answer(call());
}

constexpr std::size_t kMostPieces = 1024;  // IOV_MAX

template <class Call>
std::int64_t transfer(OpKind kind, const std::string& path, bool direct, std::span<const iovec> pieces,
                      std::uint64_t offset, Call&& call) {
  pieces = pieces.first(std::min(pieces.size(), kMostPieces));
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  const auto said = intercept({kind, path.c_str(), offset, bytes});
  if (said && *said <= 0) return *said;
  if (!said || static_cast<std::uint64_t>(*said) >= bytes) {
    return answer(call(pieces.data(), static_cast<int>(pieces.size())));
  }
  // Direct I/O takes whole blocks only: all is done and less is reported.
  if (direct) return std::min(*said, answer(call(pieces.data(), static_cast<int>(pieces.size()))));
  // Shorter than asked: a copy of the list that ends where the interceptor says.
  std::array<iovec, kMostPieces> some;
  std::size_t n = 0;
  for (std::uint64_t left = static_cast<std::uint64_t>(*said); left > 0; ++n) {
    some[n] = pieces[n];
    some[n].iov_len = std::min<std::uint64_t>(left, pieces[n].iov_len);
    left -= some[n].iov_len;
  }
  return answer(call(some.data(), static_cast<int>(n)));
}

template <class Byte, class Transfer>
void all_or_throw(const char* verb, const std::string& path, Byte* data, std::uint64_t bytes, std::uint64_t offset,
                  Transfer&& transfer_some) {
  Retry retry;
  std::uint64_t done = 0;
  while (done < bytes) {
    const iovec piece{const_cast<std::byte*>(data) + done, std::min<std::uint64_t>(bytes - done, GiB)};
    const std::int64_t result = transfer_some(std::span(&piece, 1), offset + done);
    if (result > 0) done += static_cast<std::uint64_t>(result);
    if (done < bytes && !retry.again(result)) {
      const int error = result < 0 ? static_cast<int>(-result) : 0;
      throw IoError({verb, path, "", offset, bytes, done, error, ""});
    }
  }
}

}  // namespace

const char* name_of(OpKind kind) {
  constexpr std::array<const char*, 15> kNames = {"open",      "close",  "read",  "write",   "sync",
                                                  "rename",    "remove", "mkdir", "readdir", "fallocate",
                                                  "ftruncate", "stat",   "lock",  "mmap",    "io_uring_setup"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool Retry::again(std::int64_t result) {
  if (result > 0) {
    idle_ = 0;
    return true;
  }
  if (result != -EINTR && result != -EAGAIN) return false;
  if (++idle_ > kMost) return false;
  // Under 10 ms a pause, about 0.1 s in all: long enough for a queue to drain, short enough to say the truth.
  if (result == -EAGAIN)
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(10 << std::min(idle_, 10), 8000)));
  return true;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), direct_(other.direct_), path_(std::move(other.path_)) {}
File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    direct_ = other.direct_;
    path_ = std::move(other.path_);
  }
  return *this;
}
File::~File() { close(); }

std::int64_t File::open(const std::string& path, int flags, File* file) {
  std::int64_t result;
  Retry retry;
  do {
    const auto said = intercept({OpKind::open, path.c_str(), 0, 0, flags});
    result = said && *said < 0 ? *said : answer(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  } while (result == -EINTR && retry.again(result));
  if (result < 0) return result;
  file->close();
  file->fd_ = static_cast<int>(result);
  file->direct_ = (flags & O_DIRECT) != 0;
  file->path_ = path;
  return 0;
}

File File::open_or_throw(const std::string& path, int flags) {
  File file;
  if (const std::int64_t result = open(path, flags, &file); result < 0) {
    throw IoError({"open", path, "", 0, 0, 0, static_cast<int>(-result), ""});
  }
  return file;
}

void File::close() {
  if (fd_ < 0) return;
  // A failing close has nothing to say that sync has not said: data that matters was synced before. The descriptor
  // is gone in any case.
  intercept({OpKind::close, path_.c_str()});
  ::close(std::exchange(fd_, -1));
}

std::int64_t File::read(std::span<const iovec> pieces, std::uint64_t offset) const {
  return transfer(OpKind::read, path_, direct_, pieces, offset,
                  [&](const iovec* list, int n) { return ::preadv(fd_, list, n, static_cast<off_t>(offset)); });
}
std::int64_t File::write(std::span<const iovec> pieces, std::uint64_t offset) const {
  return transfer(OpKind::write, path_, direct_, pieces, offset,
                  [&](const iovec* list, int n) { return ::pwritev(fd_, list, n, static_cast<off_t>(offset)); });
}

void File::read_or_throw(void* to, std::uint64_t bytes, std::uint64_t offset) const {
  all_or_throw("read", path_, static_cast<std::byte*>(to), bytes, offset,
               [&](std::span<const iovec> pieces, std::uint64_t at) { return read(pieces, at); });
}
void File::write_or_throw(const void* from, std::uint64_t bytes, std::uint64_t offset) const {
  all_or_throw("write", path_, static_cast<const std::byte*>(from), bytes, offset,
               [&](std::span<const iovec> pieces, std::uint64_t at) { return write(pieces, at); });
}

std::int64_t File::sync() const {
  return guarded({OpKind::sync, path_.c_str()}, [&] { return ::fdatasync(fd_); });
}
std::int64_t File::sync_all() const {
  return guarded({OpKind::sync, path_.c_str()}, [&] { return ::fsync(fd_); });
}
std::int64_t File::allocate(std::uint64_t bytes) const {
  return guarded({OpKind::allocate, path_.c_str(), 0, bytes},
                 [&] { return ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)); });
}
std::int64_t File::truncate(std::uint64_t bytes) const {
  return guarded({OpKind::truncate, path_.c_str(), 0, bytes},
                 [&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); });
}
std::int64_t File::size() const {
  struct stat facts {};
  const std::int64_t result = guarded({OpKind::stat, path_.c_str()}, [&] { return ::fstat(fd_, &facts); });
  return result < 0 ? result : facts.st_size;
}
std::int64_t File::lock(bool shared) const {
  return guarded({OpKind::lock, path_.c_str()}, [&] { return ::flock(fd_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB); });
}

File::Direct File::direct() const {
  struct statx facts {};
  const std::int64_t result =
      guarded({OpKind::stat, path_.c_str()}, [&] { return ::statx(fd_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts); });
  if (result < 0 || (facts.stx_mask & STATX_DIOALIGN) == 0) return {};
  return {facts.stx_dio_mem_align, facts.stx_dio_offset_align};
}

std::int64_t rename(const std::string& from, const std::string& to) {
  return guarded({OpKind::rename, to.c_str()}, [&] { return ::rename(from.c_str(), to.c_str()); });
}
std::int64_t remove(const std::string& path) {
  return guarded({OpKind::remove, path.c_str()}, [&] { return ::remove(path.c_str()); });
}

std::int64_t make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (!part.empty() && kind_of(part) != PathKind::folder) {
      const std::int64_t result =
          guarded({OpKind::make_folder, part.c_str()}, [&] { return ::mkdir(part.c_str(), 0755); });
      if (result == -EEXIST && kind_of(part) != PathKind::folder) return -ENOTDIR;
      if (result < 0 && result != -EEXIST) return result;
    }
    if (end == std::string::npos) return 0;
  }
}

std::int64_t list_folder(const std::string& folder, std::vector<std::string>* names) {
  names->clear();
  if (const auto said = intercept({OpKind::list, folder.c_str()}); said && *said < 0) return *said;
  DIR* open_folder = ::opendir(folder.c_str());
  if (open_folder == nullptr) return -errno;
  errno = 0;
  while (const dirent* entry = ::readdir(open_folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names->emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(open_folder);
  std::sort(names->begin(), names->end());
  return -error;
}

PathKind kind_of(const std::string& path) {
  struct stat facts {};
  const std::int64_t result = guarded({OpKind::stat, path.c_str()}, [&] { return ::stat(path.c_str(), &facts); });
  if (result == -ENOENT || result == -ENOTDIR) return PathKind::missing;
  if (result < 0) return PathKind::unreachable;
  if (S_ISREG(facts.st_mode)) return PathKind::file;
  return S_ISDIR(facts.st_mode) ? PathKind::folder : PathKind::other;
}

namespace {
std::string file_system_name(std::uint64_t magic) {
  struct Known {
    std::uint64_t magic;
    const char* name;
  };
  constexpr std::array<Known, 14> kKnown = {{{0xEF53, "ext4"},
                                             {0x58465342, "xfs"},
                                             {0x9123683E, "btrfs"},
                                             {0x01021994, "tmpfs"},
                                             {0x858458F6, "ramfs"},
                                             {0xF2F52010, "f2fs"},
                                             {0x2FC12FC1, "zfs"},
                                             {0x794C7630, "overlayfs"},
                                             {0x6969, "nfs"},
                                             {0x65735546, "fuse"},
                                             {0x01021997, "9p"},
                                             {0xFF534D42, "cifs"},
                                             {0xCA451A4E, "bcachefs"},
                                             {0x0BD00BD0, "lustre"}}};
  for (const Known& known : kKnown) {
    if (known.magic == magic) return known.name;
  }
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(magic));
  return text.data();
}
}  // namespace

std::int64_t space_of(const std::string& path, Space* space) {
  struct statfs facts {};
  const std::int64_t result = guarded({OpKind::stat, path.c_str()}, [&] { return ::statfs(path.c_str(), &facts); });
  if (result < 0) return result;
  const auto block = static_cast<std::uint64_t>(facts.f_bsize);
  *space = {facts.f_bavail * block, facts.f_blocks * block, block,
            file_system_name(static_cast<std::uint64_t>(facts.f_type) & 0xFFFFFFFFu), (facts.f_flags & ST_RDONLY) != 0};
  return 0;
}

}  // namespace transload::os
