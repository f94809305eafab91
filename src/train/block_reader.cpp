#include "train/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/check.h"
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
    written_ = stored.slot.valid();
    if (!written_) {
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
  Content content() const { return {memory_.data(), written_, error_}; }

 private:
  os::Memory memory_;
  std::string name_;
  IoSlice slice_;
  std::exception_ptr error_;
  bool written_ = false;
  bool done_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::uint64_t largest_bytes(const Layout& layout, const std::vector<RankBlock>& blocks) {
  std::uint64_t largest = kAlignment;
  for (const RankBlock& b : blocks) largest = std::max(largest, layout.blocks()[b.block.value].bytes);
  return round_up(largest, kAlignment);
}

std::string block_name(const Layout& layout, RankBlock block, std::uint64_t step) {
  const std::string& name = layout.blocks()[block.block.value].name;
  if (layout.shards().count == 1) return fmt::format("{} of step {}", name, step);
  return fmt::format("{} of rank {}, step {}", name, block.rank, step);
}

BlockReader::BlockReader(const std::vector<Store*>& stores, const Layout& layout, std::uint64_t step,
                         std::vector<RankBlock> blocks)
    : stores_(stores), layout_(layout), step_(step), blocks_(std::move(blocks)) {
  const std::uint64_t largest = largest_bytes(layout, blocks_);
  const std::size_t ahead =
      std::min<std::size_t>(blocks_.size(), std::clamp<std::uint64_t>(kAheadBytes / largest, 2, 16));
  for (std::size_t i = 0; i < ahead; ++i) ring_.push_back(std::make_unique<Buffer>(largest));
  for (std::size_t i = 0; i < ahead; ++i) begin(i);
}
BlockReader::~BlockReader() = default;

void BlockReader::begin(std::size_t i) {
  const RankBlock b = blocks_[i];
  Store& store = *stores_[b.rank];
  ring_[i % ring_.size()]->begin(store, store.committed().blocks[b.block.value], block_name(layout_, b, step_));
}

BlockReader::Content BlockReader::next() {
  TRANSLOAD_CHECK(next_ < blocks_.size(), "block {} of {}", next_, blocks_.size());
  // The buffer of the block before is free only now.
  if (next_ > 0 && next_ - 1 + ring_.size() < blocks_.size()) begin(next_ - 1 + ring_.size());
  Buffer& buffer = *ring_[next_++ % ring_.size()];
  buffer.wait();
  return buffer.content();
}

}  // namespace transload
