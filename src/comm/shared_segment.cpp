#include "comm/shared_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <utility>

#include "base/size.h"

namespace transload {
namespace {

// What must stay free beside it: other programs use the folder, too.
constexpr std::uint64_t kSpare = 1 * MiB;

std::string prefix() { return fmt::format("transload-{}-", ::getuid()); }

std::string new_path(const std::string& folder) {
  std::random_device random;
  return fmt::format("{}/{}{:08x}{:08x}", folder, prefix(), random(), random());
}

bool has_name(const os::File& file) {
  struct stat facts {};
  return ::fstat(file.fd(), &facts) == 0 && facts.st_nlink > 0;
}

std::string room_for(const std::string& folder, std::uint64_t bytes) {
  os::Space space;
  if (const auto error = os::space_of(folder, &space); error < 0)
    return fmt::format("{}: {}", folder, std::strerror(static_cast<int>(-error)));
  if (space.free_bytes >= bytes + kSpare) return {};
  return fmt::format("{} has {} free, {} are needed", folder, format_size(space.free_bytes),
                     format_size(bytes + kSpare));
}

}  // namespace

int remove_leftovers(const std::string& folder) {
  std::vector<std::string> names;
  if (os::list_folder(folder, &names) < 0) return 0;
  int removed = 0;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix())) continue;
    const std::string path = folder + "/" + name;
    os::File file;
    if (os::File::open(path, O_RDWR | O_NOFOLLOW, &file) < 0 || file.lock(false) < 0) continue;
    if (os::remove(path) == 0) ++removed;
  }
  return removed;
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { swap(other); }
SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  swap(other);
  return *this;
}
void SharedSegment::swap(SharedSegment& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(named_, other.named_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

SharedSegment::~SharedSegment() {
  remove_name();
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

// Another rank that starts may remove the file between its creation and its lock: then it is made again.
std::string SharedSegment::create(std::uint64_t bytes, const std::string& folder) {
  remove_leftovers(folder);
  if (std::string reason = room_for(folder, bytes); !reason.empty()) return reason;
  do {
    path_ = new_path(folder);
    if (const auto error = os::File::open(path_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, &file_); error < 0)
      return fmt::format("{}: {}", path_, std::strerror(static_cast<int>(-error)));
    named_ = true;
    if (const auto error = file_.lock(false); error < 0 && error != -EWOULDBLOCK)
      return fmt::format("{}: {}", path_, std::strerror(static_cast<int>(-error)));
  } while (!has_name(file_));
  if (::fchmod(file_.fd(), 0600) != 0) return std::strerror(errno);
  if (const auto error = file_.allocate(bytes); error < 0)
    return fmt::format("{} of {}: {}", format_size(bytes), folder, std::strerror(static_cast<int>(-error)));
  return map(bytes);
}

std::string SharedSegment::attach(const std::string& path, std::uint64_t bytes) {
  path_ = path;
  if (const auto error = os::File::open(path, O_RDWR | O_NOFOLLOW, &file_); error < 0)
    return fmt::format("{}: {}", path, std::strerror(static_cast<int>(-error)));
  if (file_.size() < static_cast<std::int64_t>(bytes)) return fmt::format("{} is too short", path);
  std::string reason = map(bytes);
  file_.close();
  return reason;
}

std::string SharedSegment::map(std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_.fd(), 0);
  if (at == MAP_FAILED) return fmt::format("{}: {}", path_, std::strerror(errno));
  data_ = static_cast<std::byte*>(at);
  bytes_ = bytes;
  return {};
}

void SharedSegment::remove_name() {
  if (!std::exchange(named_, false)) return;
  (void)os::remove(path_);
  file_.close();
}

}  // namespace transload
