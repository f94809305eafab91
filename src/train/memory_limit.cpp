// What memory this process may still take: the machine's, or its container's where that is less.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/size.h"
#include "train/memory_limit.h"
#include "train/trainer.h"

namespace transload {

namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The number of a file that holds one number; nothing for "max" or a file that is not there.
std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end == text->data()) return std::nullopt;
  return value;
}

/// The value after `key` at the start of a line of "key value" or "key: value kB" lines.
std::optional<std::uint64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    std::uint64_t value = 0;
    if (rest.peek() == ':') rest.get();
    if (rest >> value) return value;
  }
  return std::nullopt;
}

/// One control group's memory files, in the names of version 1 or 2.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  ///< page cache of files that nobody holds: the kernel gives it back before it refuses
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

/// Narrows `limit` by every group from `path` up to the mount: a parent's limit binds its children.
void narrow_by_groups(const std::string& mount, std::string path, const GroupFiles& files, MemoryLimit& limit) {
  for (;;) {
    const std::string folder = mount + (path == "/" ? "" : path);
    const auto most = read_number(folder + "/" + files.limit);
    if (most && *most < limit.total_bytes) {
      limit.total_bytes = *most;
      limit.source = "cgroup " + path;
    }
    if (most) {
      const std::uint64_t usage = read_number(folder + "/" + files.usage).value_or(0);
      const std::uint64_t back = read_field(folder + "/memory.stat", files.reclaimable).value_or(0);
      const std::uint64_t held = usage - std::min(usage, back);
      limit.available_bytes = std::min(limit.available_bytes, *most - std::min(*most, held));
    }
    if (path == "/" || path.empty()) return;
    path.resize(path.rfind('/'));
    if (path.empty()) path = "/";
  }
}

}  // namespace

MemoryLimit memory_limit_of(const std::string& root) {
  MemoryLimit limit;
  limit.source = "machine";
  limit.total_bytes = read_field(root + "/proc/meminfo", "MemTotal").value_or(0) * KiB;
  limit.available_bytes = read_field(root + "/proc/meminfo", "MemAvailable").value_or(0) * KiB;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "hierarchy:controllers:path"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      narrow_by_groups(root + "/sys/fs/cgroup", path, kVersion2, limit);
    } else if (controllers.find(",memory,") != std::string::npos) {
      narrow_by_groups(root + "/sys/fs/cgroup/memory", path, kVersion1, limit);
    }
  }
  // Code, libraries, tables and what the rest of the machine needs while a run goes on.
  limit.reserve_bytes = std::min(limit.available_bytes, 256 * MiB + limit.total_bytes / 32);
  return limit;
}

MemoryLimit memory_limit() { return memory_limit_of(""); }

std::uint64_t resident_bytes() { return read_field("/proc/self/status", "VmRSS").value_or(0) * KiB; }

std::uint64_t peak_resident_bytes() { return read_field("/proc/self/status", "VmHWM").value_or(0) * KiB; }

}  // namespace transload
