#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace transload {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = "lock";

[[noreturn]] void fail(const char* operation, const std::string& path, int error, const std::string& advice) {
  throw IoError({.operation = operation, .path = path, .block = {}, .error = error, .advice = advice});
}

std::string holder_of(const std::string& lock_path) {
  std::ifstream in(lock_path);
  std::string pid;
  std::getline(in, pid);
  return pid.empty() ? "another process" : "process " + pid;
}

/// The locked descriptor, or -1 when somebody else holds the lock.
int take_lock(const std::string& lock_path, int flags) {
  const int fd = ::open(lock_path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) fail("open", lock_path, errno, "Choose a run folder that this user may write.");
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  ::close(fd);
  if (error != EWOULDBLOCK) fail("lock", lock_path, error, "Choose a run folder on a file system with file locks.");
  return -1;
}

[[noreturn]] void refuse_in_use(const std::string& path) {
  throw InputError(fmt::format("The run folder {} is in use by {}. Wait until it ends, or choose another --run folder.",
                               path, holder_of(path + "/" + kLockName)));
}

void refuse_non_folder(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_directory(path, ignored))
    throw InputError(fmt::format("--run {} is not a folder. Choose a folder that a run may fill.", path));
}

void write_all(int fd, const std::string& path, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw IoError({.operation = "write",
                     .path = path,
                     .block = {},
                     .offset = done,
                     .wanted = text.size() - done,
                     .error = n < 0 ? errno : ENOSPC,
                     .advice = "Make room on the drive of the run folder."});
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace

void RunFolder::check_usable(const std::string& path) {
  refuse_non_folder(path);
  const std::string lock_path = path + "/" + kLockName;
  std::error_code ignored;
  if (!fs::exists(lock_path, ignored)) return;
  const int fd = take_lock(lock_path, O_RDONLY);
  if (fd < 0) refuse_in_use(path);
  ::close(fd);
}

RunFolder::RunFolder(const std::string& path) : path_(path) {
  refuse_non_folder(path);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("create", path, error.value(), "Choose a run folder that this user may make.");
  const std::string lock_path = path + "/" + kLockName;
  lock_ = take_lock(lock_path, O_RDWR | O_CREAT);
  if (lock_ < 0) refuse_in_use(path);
  // The pid is for the message of whoever finds the folder in use; the lock itself is the flock.
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock_, 0) != 0) fail("truncate", lock_path, errno, "Choose another run folder.");
  write_all(lock_, lock_path, pid);
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void RunFolder::write_file(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name, temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail("open", temporary, errno, "Choose a run folder that this user may write.");
  try {
    write_all(fd, temporary, text);
    if (::fsync(fd) != 0) fail("fsync", temporary, errno, "Check the drive of the run folder.");
  } catch (...) {
    ::close(fd);
    ::unlink(temporary.c_str());
    throw;
  }
  ::close(fd);
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename", path, errno, "Check the drive of the run folder.");
}

std::string place_of_store(const TrainOptions& options) {
  const fs::path own = fs::path(options.run) / "store";
  std::error_code error;
  const bool linked = fs::is_symlink(own, error);
  const std::string existing = linked ? fs::read_symlink(own, error).string() : std::string();
  if (options.nvme.empty()) return linked ? existing : own.string();
  if (!fs::exists(options.nvme, error))
    throw InputError(fmt::format("--nvme {} does not exist. Make the folder, or name another.", options.nvme));
  if (!fs::is_directory(options.nvme, error))
    throw InputError(fmt::format("--nvme {} is not a folder. Name a folder on the drive to use.", options.nvme));
  if (::access(options.nvme.c_str(), W_OK) != 0)
    throw InputError(fmt::format("--nvme {} cannot be written ({}). Name a folder that this user may write.",
                                 options.nvme, std::strerror(errno)));
  const std::string run = fs::weakly_canonical(options.run, error).lexically_normal().string();
  const std::string name = fmt::format("transload-{}-{:016x}", fs::path(run).filename().string(),
                                       static_cast<std::uint64_t>(XXH3_64bits(run.data(), run.size())));
  const std::string place = (fs::canonical(options.nvme) / name).string();
  if (linked && fs::exists(existing, error) && !fs::equivalent(existing, place, error))
    throw InputError(fmt::format("The store of run {} lies in {}, not below --nvme {}. Leave --nvme out to go on there.",
                                 options.run, existing, options.nvme));
  if (!linked && fs::exists(own / "manifest", error))
    throw InputError(fmt::format("The store of run {} lies in the run folder, not below --nvme {}. Leave --nvme out to "
                                 "go on there.",
                                 options.run, options.nvme));
  return place;
}

void link_store(const std::string& run, const std::string& store) {
  const fs::path own = fs::path(run) / "store";
  std::error_code error;
  if (own.string() == store || fs::is_symlink(own, error)) return;
  fs::create_directory_symlink(store, own, error);
  if (error)
    fail("link", own.string(), error.value(),
         fmt::format("Leave --nvme out, or put the run folder on a file system with links (it should lead to {}).",
                     store));
}

FileSystemFacts file_system_of(const std::string& folder) {
  fs::path existing = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(existing, error) && existing.has_parent_path() && existing != existing.parent_path())
    existing = existing.parent_path();
  FileSystemFacts facts;
  struct statvfs room {};
  if (::statvfs(existing.c_str(), &room) != 0)
    fail("statvfs", existing.string(), errno, "Name a folder that this user may read.");
  facts.free_bytes = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
  struct statfs kind {};
  if (::statfs(existing.c_str(), &kind) == 0)
    facts.memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC;
  return facts;
}

}  // namespace transload
