#include "train/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/os.h"
#include "base/size.h"

namespace transload {
namespace {

constexpr std::uint64_t kAheadBytes = 32 * MiB;
constexpr std::uint64_t kAlignment = 4096;  // of memory and length, for direct I/O

}  // namespace

/// One block on its way.
class BlockReader::Buffer final : public Completion {
 public:
  explicit Buffer(std::uint64_t bytes) : memory_(bytes, false) {}
  ~Buffer() override { wait(); }

  void begin(Store& store, const StoredBlock& stored, std::string name) {
    name_ = std::move(name);
    error_ = nullptr;
    slice_ = {memory_.data(), stored.bytes};
    if (!stored.slot.valid()) {
      std::memset(memory_.data(), 0, stored.bytes);
      return;
    }
    done_ = false;
    store.submit_read(stored.slot, {&slice_, 1}, stored.checksum, name_.c_str(), this);
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }
  void done(const IoResult& result) noexcept override {
    const std::lock_guard lock(mutex_);
    error_ = result.error;
    done_ = true;
    changed_.notify_one();
  }
  const std::byte* data() const { return memory_.data(); }
  const std::exception_ptr& error() const { return error_; }

 private:
  os::Memory memory_;
  std::string name_;
  IoSlice slice_;
  std::exception_ptr error_;
  bool done_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
};

BlockReader::BlockReader(Store& store, const Layout& layout, std::uint64_t step)
    : store_(store), layout_(layout), step_(step) {}
BlockReader::~BlockReader() = default;

void BlockReader::read(const std::vector<BlockId>& blocks, const Deliver& fn) {
  std::uint64_t largest = kAlignment;
  for (const BlockId block : blocks) largest = std::max(largest, layout_.blocks()[block.value].bytes);
  largest = round_up(largest, kAlignment);
  const std::size_t ahead =
      std::min<std::size_t>(blocks.size(), std::clamp<std::uint64_t>(kAheadBytes / largest, 2, 16));
  std::vector<std::unique_ptr<Buffer>> ring;
  for (std::size_t i = 0; i < ahead; ++i) ring.push_back(std::make_unique<Buffer>(largest));
  const auto begin = [&](std::size_t i) {
    const BlockId block = blocks[i];
    ring[i % ahead]->begin(store_, store_.committed().blocks[block.value],
                           fmt::format("{} of step {}", layout_.blocks()[block.value].name, step_));
  };
  for (std::size_t i = 0; i < ahead; ++i) begin(i);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Buffer& buffer = *ring[i % ahead];
    buffer.wait();
    fn(blocks[i], buffer.data(), buffer.error());
    if (i + ahead < blocks.size()) begin(i + ahead);
  }
}

}  // namespace transload
