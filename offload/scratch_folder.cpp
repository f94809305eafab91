#include "offload/scratch_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"

namespace transload {
namespace {

constexpr const char* kOwner = "/owner";

[[noreturn]] void failed(const char* operation, const std::string& path, std::int64_t result) {
  throw IoError(
      {operation, path, "", 0, 0, 0, static_cast<int>(-result), "Choose a folder on a disk that this user may write."});
}

/// While it lives nobody else makes or reclaims a subfolder here, so none is seen before it is locked. A file system
/// without locks on folders gives none; there leftovers stay.
os::File lock_parent(const std::string& parent) {
  os::File folder;
  if (const std::int64_t result = os::File::open(parent, O_RDONLY | O_DIRECTORY, &folder); result < 0)
    failed("open", parent, result);
  for (int i = 0; i < 500; ++i) {
    const std::int64_t result = folder.lock(false);
    if (result == 0) return folder;
    if (result != -EWOULDBLOCK) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

/// Files of a scratch folder are flat: its own, and those of one store.
void remove_tree(const std::string& path) {
  std::vector<std::string> names;
  if (os::list_folder(path, &names) < 0) return;
  for (const std::string& name : names) {
    const std::string inner = fmt::format("{}/{}", path, name);
    if (os::kind_of(inner) == os::PathKind::folder) {
      remove_tree(inner);
    } else {
      os::remove(inner);
    }
  }
  os::remove(path);
}

void reclaim(const std::string& parent) {
  std::vector<std::string> names;
  if (os::list_folder(parent, &names) < 0) return;
  for (const std::string& name : names) {
    if (!name.starts_with(ScratchFolder::kPrefix)) continue;
    const std::string path = fmt::format("{}/{}", parent, name);
    os::File owner;
    const std::int64_t opened = os::File::open(path + kOwner, O_RDWR, &owner);
    // Without its file it was left between two calls of a dead process; the lock on the parent rules out a living one.
    if (opened == -ENOENT || (opened == 0 && owner.lock(false) == 0)) remove_tree(path);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& parent) {
  const os::PathKind kind = os::kind_of(parent);
  if (kind == os::PathKind::missing)
    throw InputError(fmt::format("The NVMe folder {} does not exist. Make it, or name another.", parent));
  if (kind != os::PathKind::folder) throw InputError(fmt::format("{} is not a folder.", parent));
  const os::File alone = lock_parent(parent);
  if (alone.is_open()) reclaim(parent);
  std::random_device random;
  path_ = fmt::format("{}/{}{:08x}{:08x}", parent, kPrefix, random(), random());
  if (const std::int64_t result = os::make_folders(path_); result < 0) failed("mkdir", path_, result);
  const std::int64_t opened = os::File::open(path_ + kOwner, O_RDWR | O_CREAT | O_EXCL, &owner_);
  const std::int64_t locked = opened < 0 ? opened : owner_.lock(false);
  if (locked < 0) {
    remove_tree(path_);
    failed(opened < 0 ? "open" : "flock", path_ + kOwner, locked);
  }
}

ScratchFolder::~ScratchFolder() { remove_tree(path_); }

}  // namespace transload
