// The one seam to the operating system: files, folders, locks, memory maps.
//
// Every call here asks the process's interceptor first (faults.h), and so do I/O paths that do not go through this
// file's functions (io_uring: it calls intercept() for each request). So a test can make any call of the real store
// fail, come back short, take long, or be the process's last.
//
// Two manners: functions that return a result give bytes or 0 on success and -errno on failure (the caller has an
// answer to the error); functions named *_or_throw go on after EINTR, EAGAIN and short counts, bounded, and throw
// IoError with path, offset, wanted and got.
// Threading: all functions from any thread; File and Memory have one owner.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct iovec;

namespace transload::os {

enum class OpKind : std::uint8_t {
  open,
  close,
  read,
  write,
  sync,
  rename,
  remove,
  make_folder,
  list,
  allocate,
  truncate,
  stat,
  lock,
  map,
  io_uring_setup
};
const char* name_of(OpKind kind);

/// One call about to be made.
struct IoOp {
  OpKind kind = OpKind::read;
  const char* path = "";
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  int flags = 0;  ///< open: O_*; io_uring_setup: IORING_SETUP_*
};

/// What the interceptor says: nothing: carry on. Negative: fail with -errno, nothing is done. From 0 on: for read and
/// write, do at most that many bytes; for others, say success and do nothing.
std::optional<std::int64_t> intercept(const IoOp& op);

/// How often a call that makes no progress is repeated: bounded, with pauses after EAGAIN.
class Retry {
 public:
  static constexpr int kMost = 24;
  /// `result` is bytes moved or -errno. True: go on (some bytes moved, or a passing refusal not seen too often).
  bool again(std::int64_t result);

 private:
  int idle_ = 0;
};

/// A descriptor and the path that messages name. Closed by the destructor.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// 0 or -errno; O_CLOEXEC is added.
  static std::int64_t open(const std::string& path, int flags, File* file);
  static File open_or_throw(const std::string& path, int flags);

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  void close();

  std::int64_t read(std::span<const iovec> pieces, std::uint64_t offset) const;
  std::int64_t write(std::span<const iovec> pieces, std::uint64_t offset) const;
  /// A file that ends early is an IoError with got < wanted and errno 0.
  void read_or_throw(void* to, std::uint64_t bytes, std::uint64_t offset) const;
  void write_or_throw(const void* from, std::uint64_t bytes, std::uint64_t offset) const;
  std::int64_t sync() const;      ///< the data, and what is needed to find it (fdatasync)
  std::int64_t sync_all() const;  ///< everything (fsync); of a folder: the names in it
  std::int64_t allocate(std::uint64_t bytes) const;
  std::int64_t truncate(std::uint64_t bytes) const;
  std::int64_t size() const;             ///< bytes or -errno
  std::int64_t lock(bool shared) const;  ///< never waits: -EWOULDBLOCK when another holds it

  /// What statx says of direct I/O on this file; zeros where the kernel does not tell.
  struct Direct {
    std::uint32_t memory_alignment = 0;
    std::uint32_t offset_alignment = 0;
  };
  Direct direct() const;

 private:
  int fd_ = -1;
  bool direct_ = false;
  std::string path_;
};

std::int64_t rename(const std::string& from, const std::string& to);
std::int64_t remove(const std::string& path);  ///< a file or an empty folder
/// Creates `path` and its missing parents; an existing folder is success. -ENOTDIR where a file is in the way.
std::int64_t make_folders(const std::string& path);
/// Names in `folder`, without "." and "..", ascending.
std::int64_t list_folder(const std::string& folder, std::vector<std::string>* names);

enum class PathKind : std::uint8_t { missing, file, folder, other, unreachable };
PathKind kind_of(const std::string& path);

struct Space {
  std::uint64_t free_bytes = 0;  ///< for this user
  std::uint64_t total_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::string file_system;  ///< "ext4", "xfs", "tmpfs", …; "0x…" for one without a name here
  bool read_only = false;
};
std::int64_t space_of(const std::string& path, Space* space);

/// Gives pages of anonymous memory back to the system; they read as zeros and count as used again once touched.
/// `data` and `bytes` are multiples of 4096. Without effect where the system refuses.
void give_back_pages(std::byte* data, std::uint64_t bytes);

/// Anonymous memory aligned to 2 MiB, huge pages asked for. Returned to the system by the destructor.
class Memory {
 public:
  Memory() = default;
  /// IoError when the system refuses. `populate`: touch every page now.
  Memory(std::uint64_t bytes, bool populate);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Empty where the system agreed to huge pages, else what it answered.
  const std::string& huge_page_refusal() const { return refusal_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  void* mapped_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::string refusal_;
};

}  // namespace transload::os
