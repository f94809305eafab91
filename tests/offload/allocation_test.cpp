// Counts the program's allocations: a store in its steady state makes none. Left out under the address sanitizer, which
// replaces the same operators to do its own work.
#ifndef __SANITIZE_ADDRESS__
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "offload/store_fixture.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace transload::testing {

TEST_CASE("writes, reads and commits allocate nothing once the first commit is done") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    StoreOptions options;
    options.folder = folder.file("store");
    options.io = way.path;
    const auto store = Store::create(options, {{128 * KiB, 8}}, {});
    const Frames frames(128 * KiB);
    const std::vector<IoSlice> slices = frames.slices(100 * KiB + 256);
    std::vector<StoredBlock> blocks(3);
    std::string metadata(5000, 'm');
    metadata.reserve(6000);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      if (step == 2) allocations = 0;
      counting = step >= 2;
      for (StoredBlock& block : blocks) {
        const SlotId slot = store->allocate(100 * KiB + 256);
        const IoResult written = write_block(*store, slot, slices);
        read_block(*store, slot, slices, written.checksum);
        if (block.slot.valid()) store->free(block.slot);
        block = {slot, step, 100 * KiB + 256, written.checksum};
      }
      metadata += 'x';
      store->commit(metadata, blocks);
    }
    counting = false;
    CHECK(store->committed().sequence == 6);
    CHECK(allocations == 0);
  }
}

}  // namespace transload::testing

#endif
