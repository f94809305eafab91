// What the store's tests share: folders that go away, memory cut into frames, calls that wait, contents by name.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/faults.h"
#include "base/os.h"
#include "base/size.h"
#include "child_process.h"
#include "offload/store.h"

namespace transload::testing {

class TemporaryFolder {
 public:
  /// `quick`: in memory (tmpfs) where that is possible, for tests that make a store hundreds of times.
  explicit TemporaryFolder(bool quick = false);
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A way of doing I/O. Every contract test runs over all of them.
struct IoWay {
  const char* name;
  IoPath path;
  bool direct;
};
std::vector<IoWay> io_ways();
/// Refuses O_DIRECT when the way is buffered, as some file systems do.
os::Interceptor interceptor_of(const IoWay& way);

/// Waits for one block; counts how often it was told.
class Waiter final : public Completion {
 public:
  void done(const IoResult& result) noexcept override;
  IoResult wait();
  int times();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  IoResult result_;
  int times_ = 0;
};

/// Memory cut into frames of 32 KiB; blocks take frames in a shuffled order, so that some are neighbours and most not.
class Frames {
 public:
  static constexpr std::uint64_t kBytes = 32 * KiB;
  explicit Frames(std::uint64_t bytes, std::uint64_t seed = 1);
  /// Slices of exactly `bytes`, from the first frames.
  std::vector<IoSlice> slices(std::uint64_t bytes) const;
  /// Every byte of the memory.
  std::span<std::byte> all() const { return {memory_.data(), memory_.bytes()}; }

 private:
  os::Memory memory_;
  std::vector<std::uint32_t> order_;
};

/// Content that depends on block, version and position.
void fill_content(const std::vector<IoSlice>& slices, std::uint64_t block, std::uint64_t version);
bool has_content(const std::vector<IoSlice>& slices, std::uint64_t block, std::uint64_t version);

IoResult write_block(Store& store, SlotId slot, const std::vector<IoSlice>& slices, const char* name = "block");
IoResult read_block(Store& store, SlotId slot, const std::vector<IoSlice>& slices, std::uint64_t checksum,
                    const char* name = "block");
/// The message of the error in a result; empty where there is none.
std::string message_of(const IoResult& result);

/// A small training run, as the store sees it: blocks of several sizes, steps that rewrite some, commits, a reopening
/// with more slots. What must be on disk after step s is a function of the seed.
class Run {
 public:
  Run(std::string folder, IoWay way, std::uint64_t seed);
  /// All of it. `commit_began(step)` and `commit_ended(step)` around each commit.
  void carry_out(const std::function<void(std::uint64_t)>& commit_began,
                 const std::function<void(std::uint64_t)>& commit_ended);
  /// Opens what is there and reads every block. The step that is committed, or nothing when there is no store. Fails
  /// the test where a byte is not what that step left.
  std::optional<std::uint64_t> check();
  static constexpr std::uint64_t kSteps = 4;

 private:
  StoreOptions options() const;
  std::uint64_t bytes_of(std::uint64_t block) const;
  std::uint64_t version_at(std::uint64_t block, std::uint64_t step) const;
  void step(Store& store, std::uint64_t step);

  static constexpr std::uint64_t kBlocks = 5;
  const std::string folder_;
  const IoWay way_;
  const std::uint64_t seed_;
  Frames frames_;
  std::vector<StoredBlock> blocks_;
};

}  // namespace transload::testing
