// InMemoryBlocks: a BlockAccess over plain memory for tests of step code. Blocks are contiguous, or scattered over
// frames whose order is shuffled, so that every run is short. Holds step code to the rules: reads need content, pins
// that conflict must have been given back, nothing stays pinned. Content that a write replaces, consumed content and
// fresh workspace are filled with NaN bits, so that stale bytes show.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/block_access.h"
#include "trace/tracer.h"

namespace transload::testing {

enum class Placement { contiguous, scattered };

class InMemoryBlocks final : public BlockAccess {
 public:
  /// A multiple of 128 elements of any dtype, as frames of arenas are.
  static constexpr std::uint64_t kFrameBytes = 512;

  InMemoryBlocks(const std::vector<BlockSpec>& specs, Placement placement) : blocks_(specs.size()) {
    std::uint64_t frames = 0;
    for (const BlockSpec& spec : specs) frames += (spec.bytes + kFrameBytes - 1) / kFrameBytes;
    memory_.resize(frames * kFrameBytes + kAlign);
    base_ = aligned(memory_.data());
    next_.resize(frames, UINT32_MAX);
    table_ = {base_, kFrameBytes, next_.data()};
    std::uint32_t used = 0;
    for (std::size_t b = 0; b < specs.size(); ++b) {
      const auto count = static_cast<std::uint32_t>((specs[b].bytes + kFrameBytes - 1) / kFrameBytes);
      blocks_[b].name = specs[b].name;
      if (placement == Placement::contiguous)
        blocks_[b].view = BlockView(base_ + used * kFrameBytes, specs[b].bytes);
      else
        scatter(blocks_[b], specs[b].bytes, used, count);
      used += count;
    }
  }
  ~InMemoryBlocks() override {
    TRANSLOAD_CHECK(held_ == 0 && pending_ == 0, "{} pins are held and {} were not released", held_, pending_);
  }

  Pin pin(BlockId id, Tier tier, AccessKind kind) override {
    std::unique_lock lock(mutex_);
    Block& block = blocks_[id.value];
    const bool writes = kind != AccessKind::read;
    TRANSLOAD_CHECK(block.held_writers == 0 && (!writes || block.held_readers == 0),
                    "{} is pinned again without being given back", block.name);
    released_.wait(lock, [&] { return block.pending_writers == 0 && (!writes || block.pending_readers == 0); });
    TRANSLOAD_CHECK(!needs_content(kind) || block.content, "{} is read without content", block.name);
    if (kind == AccessKind::write) poison(block);
    (writes ? block.held_writers : block.held_readers) += 1;
    peak_held_ = std::max(peak_held_, ++held_);
    Pin pin;
    pin.view = block.view;
    pin.block = id;
    pin.tier = tier;
    pin.kind = kind;
    pin.tick = tracer_.access(id, tier, kind);
    return pin;
  }

  void unpin(Pin pin, Stream& stream) override {
    {
      const std::lock_guard lock(mutex_);
      Block& block = blocks_[pin.block.value];
      const bool writes = pin.kind != AccessKind::read;
      (writes ? block.held_writers : block.held_readers) -= 1;
      (writes ? block.pending_writers : block.pending_readers) += 1;
      --held_;
      ++pending_;
      tracer_.release(pin.tick);
    }
    stream.launch([this, id = pin.block, kind = pin.kind] { release(id, kind); });
  }

  std::byte* workspace(Tier, std::uint64_t bytes) override {
    tracer_.workspace(Tier::host, bytes);
    peak_workspace_ = std::max(peak_workspace_, bytes);
    workspace_.assign(bytes + kAlign, std::byte{0xFF});
    return aligned(workspace_.data());
  }
  void begin_backward() override { tracer_.begin_backward(); }
  bool dry() const override { return false; }

  /// Content as the owner of the test sees it; no pin may be held.
  void set(BlockId id, const void* from, std::uint64_t begin, std::uint64_t bytes) {
    blocks_[id.value].view.copy_in(from, begin, begin + bytes);
    blocks_[id.value].content = true;
  }
  void set_zero(BlockId id) {
    const BlockView view = blocks_[id.value].view;
    view.zero(0, view.bytes());
    blocks_[id.value].content = true;
  }
  void get(BlockId id, void* to, std::uint64_t begin, std::uint64_t bytes) const {
    TRANSLOAD_CHECK(blocks_[id.value].content, "{} has no content", blocks_[id.value].name);
    blocks_[id.value].view.copy_out(to, begin, begin + bytes);
  }
  bool has_content(BlockId id) const { return blocks_[id.value].content; }

  Trace take_trace() { return tracer_.take(); }
  /// The most pins that were held by the issuing thread at once.
  int peak_held() const { return peak_held_; }
  std::uint64_t peak_workspace() const { return peak_workspace_; }

 private:
  static constexpr std::uint64_t kAlign = 4096;
  struct Block {
    std::string name;
    BlockView view;
    bool content = false;
    // Held by the issuing thread; or given back, but the stream has not got there.
    int held_readers = 0, held_writers = 0, pending_readers = 0, pending_writers = 0;
  };

  static std::byte* aligned(std::byte* p) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(p) + kAlign - 1) / kAlign * kAlign);
  }
  /// Links the frames [first, first + count) from the last to the first: no two are neighbours in order.
  void scatter(Block& block, std::uint64_t bytes, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 1; i < count; ++i) next_[first + i] = first + i - 1;
    block.view = BlockView(&table_, first + count - 1, bytes);
  }
  static void poison(const Block& block) {
    block.view.for_each_run(0, block.view.bytes(),
                            [](std::byte* data, std::uint64_t, std::uint64_t n) { std::memset(data, 0xFF, n); });
  }
  void release(BlockId id, AccessKind kind) {
    {
      const std::lock_guard lock(mutex_);
      Block& block = blocks_[id.value];
      (kind != AccessKind::read ? block.pending_writers : block.pending_readers) -= 1;
      --pending_;
      if (makes_version(kind)) block.content = true;
      if (kind == AccessKind::consume) {
        block.content = false;
        poison(block);
      }
    }
    released_.notify_all();
  }

  std::vector<std::byte> memory_, workspace_;
  std::byte* base_ = nullptr;
  std::vector<std::uint32_t> next_;
  FrameTable table_;
  std::vector<Block> blocks_;
  Tracer tracer_;
  int held_ = 0, pending_ = 0, peak_held_ = 0;
  std::uint64_t peak_workspace_ = 0;
  std::mutex mutex_;
  std::condition_variable released_;
};

}  // namespace transload::testing
