// One NVMe folder: what its file system is, which I/O path works there, and how fast it is. The I/O paths are found
// out by the store itself, over a store of one small slot; the speed by a bare loop on huge-page buffers, so that it
// is the disk's limit and not the store's.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/size.h"
#include "cli/probe.h"
#include "offload/scratch_folder.h"
#include "offload/store.h"
#include "train/input_file.h"

namespace transload::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kFileBytes = 1 * GiB;
constexpr std::uint64_t kBlockBytes = 4 * MiB;
constexpr int kThreads = 4;  // each with one request in flight: saturates the disks seen so far
constexpr auto kPhaseLimit = std::chrono::seconds(8);  // a slow disk shortens the file

[[noreturn]] void fail(const std::string& operation, const std::string& path, std::uint64_t wanted, int error) {
  IoError::Details details;
  details.operation = operation;
  details.path = path;
  details.wanted = wanted;
  details.error = error;
  throw IoError(details);
}

/// One buffer a thread, on huge pages where there are any.
class Buffers {
 public:
  Buffers() : bytes_(kThreads * kBlockBytes + 2 * MiB) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) fail("map memory", "", bytes_, errno);
    ::madvise(memory_, bytes_, MADV_HUGEPAGE);
    std::memset(memory_, 0x5A, bytes_);
  }
  ~Buffers() { ::munmap(memory_, bytes_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  char* of(int thread) const {
    const auto first = round_up(reinterpret_cast<std::uintptr_t>(memory_), 2 * MiB);
    return reinterpret_cast<char*>(first) + static_cast<std::uint64_t>(thread) * kBlockBytes;
  }

 private:
  std::uint64_t bytes_;
  void* memory_ = nullptr;
};

/// A file without a name: it is gone when the descriptor is closed, also after a kill.
class ProbeFile {
 public:
  ProbeFile(const std::string& folder, bool direct) {
    std::string path = (fs::path(folder) / "data-XXXXXX").string();
    fd_ = ::mkostemp(path.data(), O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (fd_ < 0) fail("create", path, 0, errno);
    ::unlink(path.c_str());
  }
  ~ProbeFile() { ::close(fd_); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

enum class Direction { read, write, duplex };

struct Phase {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

/// Moves the blocks of the file once, in order; stops early at kPhaseLimit. Throws the first I/O error.
Phase move_blocks(const ProbeFile& file, const Buffers& buffers, std::uint64_t file_bytes, Direction direction) {
  std::atomic<std::uint64_t> next{0}, moved{0};
  std::atomic<int> error{0};
  const auto begin = Clock::now();
  const auto work = [&](int thread) {
    const bool write = direction == Direction::write || (direction == Direction::duplex && thread % 2 == 0);
    while (error.load() == 0 && Clock::now() - begin < kPhaseLimit) {
      const std::uint64_t offset = next.fetch_add(kBlockBytes);
      if (offset + kBlockBytes > file_bytes) return;
      const auto at = static_cast<off_t>(offset);
      const ssize_t got = write ? ::pwrite(file.fd(), buffers.of(thread), kBlockBytes, at)
                                : ::pread(file.fd(), buffers.of(thread), kBlockBytes, at);
      if (got <= 0) error.store(got < 0 ? errno : ENOSPC);
      if (got > 0) moved.fetch_add(static_cast<std::uint64_t>(got));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  if (direction != Direction::read) ::fdatasync(file.fd());
  if (error.load() != 0) fail("measure", "the temporary file", 0, error.load());
  return {moved.load(), std::chrono::duration<double>(Clock::now() - begin).count()};
}

void measure(FolderFacts& facts, const std::string& folder) {
  std::uint64_t bytes = std::min(kFileBytes, facts.free_bytes / 4) / kBlockBytes * kBlockBytes;
  if (bytes < 64 * MiB) {
    facts.not_measured = fmt::format("only {} are free", format_size(facts.free_bytes));
    return;
  }
  const Buffers buffers;
  const ProbeFile file(folder, facts.direct);
  // The first pass allocates, which is slower than what a store sees: it writes its files through once at creation.
  bytes = move_blocks(file, buffers, bytes, Direction::write).bytes / kBlockBytes * kBlockBytes;
  facts.measured_bytes = bytes;
  facts.write = move_blocks(file, buffers, bytes, Direction::write).rate();
  if (!facts.direct) ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  facts.read = move_blocks(file, buffers, bytes, Direction::read).rate();
  facts.duplex = move_blocks(file, buffers, bytes, Direction::duplex).rate();
}

void ask_store(FolderFacts& facts, const std::string& folder) {
  const auto quiet = [](std::uint64_t, std::uint64_t) {};
  const auto store = Store::create({.folder = folder + "/store"}, {{.bytes = 1 * MiB, .count = 2}}, quiet);
  const Store::Facts found = store->facts();
  facts.file_system = found.file_system;
  facts.direct = found.direct;
  facts.direct_reason = found.direct_reason;
  facts.alignment = found.alignment;
  facts.io_path = found.io_path;
  facts.io_reason = found.io_reason;
}

}  // namespace

FolderFacts probe_folder(const std::string& folder) {
  FolderFacts facts;
  facts.folder = folder;
  try {
    if (!path_exists(folder))
      facts.error = "the folder does not exist; create it on the drive that is meant";
    else if (!is_folder(folder))
      facts.error = "this is a file, not a folder";
  } catch (const Error& e) {
    facts.error = e.what();
  }
  if (!facts.error.empty()) return facts;
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) == 0) {
    facts.free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
    facts.total_bytes = static_cast<std::uint64_t>(space.f_blocks) * space.f_frsize;
  }
  try {
    const ScratchFolder temporary(folder);  // what a probe that was killed left is removed, too
    ask_store(facts, temporary.path());
    measure(facts, temporary.path());
  } catch (const Error& e) {
    facts.error = e.what();
  }
  return facts;
}

}  // namespace transload::cli
