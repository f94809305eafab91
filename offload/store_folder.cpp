#include "offload/store_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "offload/manifest_file.h"
#include "offload/slot_file.h"

namespace transload {
namespace {

constexpr std::string_view kLockMark = "transload store";
constexpr std::string_view kSlotsPrefix = "slots-";

[[noreturn]] void failed(const char* operation, const std::string& path, std::int64_t result) {
  std::string advice;
  if (result == -EROFS || result == -EACCES || result == -EPERM) advice = "Choose a folder that this user may write.";
  throw IoError({operation, path, "", 0, 0, 0, static_cast<int>(-result), advice});
}

[[noreturn]] void foreign(const std::string& path) {
  throw InputError(
      fmt::format("{} is in the way and was not written by a store. Move it, or choose another folder.", path));
}

std::string text_of(const os::File& file) {
  std::array<char, 64> text{};
  const iovec piece{text.data(), text.size()};
  const std::int64_t got = file.read(std::span(&piece, 1), 0);
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

/// The number in "slots-0012", or nothing.
bool slots_number(std::string_view name, std::size_t* number) {
  if (name.size() < kSlotsPrefix.size() + 4 || name.substr(0, kSlotsPrefix.size()) != kSlotsPrefix) return false;
  *number = 0;
  for (const char c : name.substr(kSlotsPrefix.size())) {
    if (c < '0' || c > '9' || *number > 1'000'000) return false;
    *number = *number * 10 + static_cast<std::size_t>(c - '0');
  }
  return true;
}

}  // namespace

StoreFolder::StoreFolder(const std::string& path, Use use) : path_(path) {
  const os::PathKind kind = os::kind_of(path);
  if (kind == os::PathKind::file || kind == os::PathKind::other) {
    throw InputError(fmt::format("{} is not a folder. Choose a folder for the store.", path));
  }
  if (kind == os::PathKind::missing && use != Use::make) {
    throw InputError(fmt::format("There is no store in {}: the folder does not exist.", path));
  }
  if (use == Use::make) {
    if (const std::int64_t result = os::make_folders(path); result < 0) failed("mkdir", path, result);
  }
  if (const std::int64_t result = os::File::open(path, O_RDONLY | O_DIRECTORY, &folder_); result < 0) {
    failed("open", path, result);
  }
  lock(use);
}

void StoreFolder::lock(Use use) {
  const std::string path = path_ + "/lock";
  const bool read = use == Use::read;
  const std::int64_t opened = os::File::open(path, read ? O_RDONLY : O_RDWR | O_CREAT, &lock_);
  // A copy of a store, or one on a read-only file system, can be read without its lock.
  if (read && opened < 0) return;
  if (opened < 0) failed("open", path, opened);
  const std::string text = text_of(lock_);
  if (!text.empty() && text.substr(0, kLockMark.size()) != kLockMark) foreign(path);
  const std::int64_t locked = lock_.lock(read);
  if (locked == -EWOULDBLOCK) {
    const std::size_t digits = text.find_first_of("0123456789");
    const std::string who = digits == std::string::npos
                                ? "a process that reads it"
                                : "process " + text.substr(digits, text.find('\n', digits) - digits);
    throw InputError(
        fmt::format("The store in {} is in use by {}. Wait for it to end, or choose another folder.", path_, who));
  }
  if (locked < 0) failed("flock", path, locked);
  if (read) return;
  const std::string line = fmt::format("{}, process {}\n", kLockMark, ::getpid());
  if (const std::int64_t result = lock_.truncate(0); result < 0) failed("ftruncate", path, result);
  lock_.write_or_throw(line.data(), line.size(), 0);
}

void StoreFolder::forget_process() {
  if (lock_.is_open()) lock_.truncate(kLockMark.size());
}

std::string StoreFolder::slots_path(std::size_t number) const {
  return fmt::format("{}/{}{:04}", path_, kSlotsPrefix, number);
}

void StoreFolder::reclaim(std::size_t first) const {
  std::vector<std::string> names;
  if (const std::int64_t result = os::list_folder(path_, &names); result < 0) failed("readdir", path_, result);
  for (const std::string& name : names) {
    std::size_t number = 0;
    const std::string path = path_ + "/" + name;
    if (!slots_number(name, &number) || number < first || !is_slot_file(path)) continue;
    if (const std::int64_t result = os::remove(path); result < 0) failed("unlink", path, result);
  }
  if (!is_our_leftover(temporary_path())) foreign(temporary_path());
  const std::int64_t result = os::remove(temporary_path());
  if (result < 0 && result != -ENOENT) failed("unlink", temporary_path(), result);
}

void StoreFolder::remove() const {
  reclaim(0);
  if (!is_our_leftover(manifest_path())) foreign(manifest_path());
  for (const std::string& path : {manifest_path(), path_ + "/lock", path_}) {
    const std::int64_t result = os::remove(path);
    if (result < 0 && result != -ENOENT && !(path == path_ && result == -ENOTEMPTY)) failed("unlink", path, result);
  }
}

void StoreFolder::sync() const {
  if (const std::int64_t result = folder_.sync_all(); result < 0) failed("fsync", path_, result);
}

}  // namespace transload
