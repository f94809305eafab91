#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/size.h"
#include "train/input_file.h"
#include "train/store_places.h"

namespace transload {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = "lock";

/// Throws for -errno.
void demand(std::int64_t result, const char* operation, const std::string& path, const std::string& advice) {
  if (result >= 0) return;
  throw IoError(
      {.operation = operation, .path = path, .block = {}, .error = static_cast<int>(-result), .advice = advice});
}

std::string holder_of(const std::string& lock_path) {
  std::ifstream in(lock_path);
  std::string pid;
  std::getline(in, pid);
  return pid.empty() ? "another process" : "process " + pid;
}

/// The locked file; closed when somebody else holds the lock.
os::File take_lock(const std::string& lock_path, int flags) {
  os::File file = os::File::open_or_throw(lock_path, flags);
  const std::int64_t result = file.lock(false);
  if (result == -EWOULDBLOCK) return {};
  demand(result, "lock", lock_path, "Choose a run folder on a file system with file locks.");
  return file;
}

[[noreturn]] void refuse_in_use(const std::string& path) {
  throw InputError(fmt::format("The run folder {} is in use by {}. Wait until it ends, or choose another --run folder.",
                               path, holder_of(path + "/" + kLockName)));
}

void refuse_non_folder(const std::string& path) {
  if (path_exists(path) && !is_folder(path))
    throw InputError(fmt::format("--run {} is not a folder. Choose a folder that a run may fill.", path));
  if (path_exists(path + "/manifest"))
    throw InputError(fmt::format("--run {} is a store, not a run folder. Name the folder of its run.", path));
}

}  // namespace

std::string name_for(const Shards& shards, const std::string& file) {
  if (shards.rank == 0) return file;
  const fs::path path = file;
  return fmt::format("{}-r{}{}", path.stem().string(), shards.rank, path.extension().string());
}

void RunFolder::check_usable(const std::string& path) {
  refuse_non_folder(path);
  const std::string lock_path = path + "/" + kLockName;
  if (os::kind_of(lock_path) == os::PathKind::missing) return;
  if (!take_lock(lock_path, O_RDONLY).is_open()) refuse_in_use(path);
}

RunFolder::RunFolder(const std::string& path, Use use) : path_(path) {
  refuse_non_folder(path);
  demand(os::make_folders(path), "create", path, "Choose a run folder that this user may make.");
  if (use == Use::join) return;
  const std::string lock_path = path + "/" + kLockName;
  lock_ = take_lock(lock_path, O_RDWR | O_CREAT);
  if (!lock_.is_open()) refuse_in_use(path);
  // The pid is for the message of whoever finds the folder in use; the lock itself is the kernel's.
  const std::string pid = std::to_string(::getpid()) + "\n";
  demand(lock_.truncate(0), "truncate", lock_path, "Choose another run folder.");
  lock_.write_or_throw(pid.data(), pid.size(), 0);
}

void RunFolder::write_file(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name, temporary = path + ".tmp";
  try {
    const os::File file = os::File::open_or_throw(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write_or_throw(text.data(), text.size(), 0);
    demand(file.sync(), "fsync", temporary, "Check the drive of the run folder.");
  } catch (...) {
    os::remove(temporary);
    throw;
  }
  demand(os::rename(temporary, path), "rename", path, "Check the drive of the run folder.");
}

void check_nvme(const TrainOptions& options) {
  if (options.nvme.empty()) return;
  if (!path_exists(options.nvme))
    throw InputError(fmt::format("--nvme {} does not exist. Make the folder, or name another.", options.nvme));
  if (!is_folder(options.nvme))
    throw InputError(fmt::format("--nvme {} is not a folder. Name a folder on the drive to use.", options.nvme));
  os::Space space;
  if (os::space_of(options.nvme, &space) == 0 && space.read_only)
    throw InputError(fmt::format("--nvme {} lies on a file system that is mounted read-only. Name a folder on another.",
                                 options.nvme));
  if (::access(options.nvme.c_str(), W_OK) != 0)
    throw InputError(fmt::format("--nvme {} cannot be written ({}). Name a folder that this user may write.",
                                 options.nvme, std::strerror(errno)));
}

std::string place_of_store(const TrainOptions& options) {
  const fs::path own = fs::path(options.run) / "store";
  std::error_code error;
  const bool linked = fs::is_symlink(own, error);
  const std::string existing = linked ? fs::read_symlink(own, error).string() : std::string();
  if (options.nvme.empty()) return linked ? existing : own.string();
  check_nvme(options);
  std::string place = (fs::canonical(options.nvme) / nvme_name(options.run)).string();
  if (linked && fs::exists(existing, error) && fs::equivalent(fs::path(existing).parent_path(), options.nvme, error))
    return existing;  // under the name that the run had when it began
  if (linked && fs::exists(existing, error) && !fs::equivalent(existing, place, error))
    throw InputError(
        fmt::format("The store of run {} lies in {}, not below --nvme {}. Leave --nvme out to go on there.",
                    options.run, existing, options.nvme));
  if (!linked && fs::exists(own / "manifest", error))
    throw InputError(
        fmt::format("The store of run {} lies in the run folder, not below --nvme {}. Leave --nvme out to "
                    "go on there.",
                    options.run, options.nvme));
  return place;
}

os::Space space_at(const std::string& folder) {
  std::error_code error;
  fs::path existing = fs::absolute(folder, error);
  demand(-error.value(), "getcwd", folder, "Change to a folder that exists.");
  while (!fs::exists(existing, error) && existing != existing.parent_path()) existing = existing.parent_path();
  os::Space space;
  demand(os::space_of(existing.string(), &space), "statvfs", existing.string(), "Name a folder that can be read.");
  return space;
}

}  // namespace transload
