// Seeded random operations on a store and on a plain model in memory, compared after each.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

constexpr std::uint64_t kSmall = 8 * KiB, kLarge = 96 * KiB;

/// What a store must remember.
struct Model {
  struct Content {
    std::uint64_t bytes = 0, version = 0, checksum = 0;
    bool written = false;
    bool operator==(const Content&) const = default;
  };
  std::map<std::uint32_t, Content> in_use, committed;
  std::map<std::uint64_t, std::uint64_t> slots = {{kSmall, 5}, {kLarge, 6}};  // by size
  std::map<std::uint32_t, std::uint64_t> size_of;                             // of slots seen
  std::string metadata;
  std::uint64_t sequence = 0;

  std::uint64_t free_slots(std::uint64_t slot_bytes) const {
    std::map<std::uint32_t, int> taken;
    for (const auto& [slot, content] : in_use) taken[slot] = 1;
    for (const auto& [slot, content] : committed) taken[slot] = 1;
    std::uint64_t n = 0;
    for (const auto& [slot, one] : taken) n += size_of.at(slot) == slot_bytes ? 1 : 0;
    return slots.at(slot_bytes) - n;
  }
};

class ModelTest {
 public:
  ModelTest(const IoWay& way, std::uint64_t seed) : folder_(seed > 1), random_(seed), frames_(kLarge, seed) {
    options_.folder = folder_.file("store");
    options_.io = way.path;
    store_ = Store::create(options_, {{kSmall, 5}, {kLarge, 6}}, {});
  }

  void operate() {
    switch (random_() % 12) {
      case 0:
      case 1:
      case 2:
      case 3:
        return write();
      case 4:
      case 5:
      case 6:
        return read();
      case 7:
      case 8:
        return free();
      case 9:
      case 10:
        return commit();
      default:
        return reopen();
    }
  }

 private:
  std::uint32_t any_in_use() {
    return std::next(model_.in_use.begin(), static_cast<long>(random_() % model_.in_use.size()))->first;
  }

  void write() {
    const std::uint64_t bytes = 256 * (1 + random_() % (random_() % 2 == 0 ? kSmall / 256 : kLarge / 256));
    const std::uint64_t slot_bytes = bytes <= kSmall ? kSmall : kLarge;
    const SlotId slot = store_->allocate(bytes);
    REQUIRE(slot.valid() == (model_.free_slots(slot_bytes) > 0));
    if (!slot.valid()) return;
    REQUIRE(model_.in_use.count(slot.value) == 0);
    REQUIRE(model_.committed.count(slot.value) == 0);
    const std::vector<IoSlice> slices = frames_.slices(bytes);
    fill_content(slices, slot.value, ++version_);
    const IoResult result = write_block(*store_, slot, slices);
    REQUIRE(message_of(result).empty());
    model_.in_use[slot.value] = {bytes, version_, result.checksum, true};
    model_.size_of[slot.value] = slot_bytes;
  }

  void read() {
    if (model_.in_use.empty()) return;
    const std::uint32_t slot = any_in_use();
    const Model::Content& content = model_.in_use.at(slot);
    const std::vector<IoSlice> slices = frames_.slices(content.bytes);
    REQUIRE(message_of(read_block(*store_, SlotId(slot), slices, content.checksum)).empty());
    REQUIRE(has_content(slices, slot, content.version));
  }

  void free() {
    if (model_.in_use.empty()) return;
    const std::uint32_t slot = any_in_use();
    store_->free(SlotId(slot));
    model_.in_use.erase(slot);
  }

  void commit() {
    std::vector<StoredBlock> blocks(random_() % 3);  // some that were never written
    model_.committed.clear();
    for (const auto& [slot, content] : model_.in_use) {
      if (random_() % 5 == 0) continue;
      blocks.push_back({SlotId(slot), content.version, content.bytes, content.checksum});
      model_.committed[slot] = content;
    }
    std::shuffle(blocks.begin(), blocks.end(), random_);
    model_.metadata.assign(random_() % 5000, static_cast<char>('a' + random_() % 26));
    store_->commit(model_.metadata, blocks);
    ++model_.sequence;
    compare();
  }

  void reopen() {
    if (model_.sequence == 0) return;  // there is no store before the first commit
    store_.reset();
    compare_manifest(Store::read_manifest(options_.folder));
    if (random_() % 3 == 0) ++model_.slots[random_() % 2 == 0 ? kSmall : kLarge];
    store_ = Store::open(options_, {{kSmall, model_.slots[kSmall]}, {kLarge, model_.slots[kLarge]}}, {});
    model_.in_use = model_.committed;
    compare();
  }

  void compare() { compare_manifest(store_->committed()); }
  void compare_manifest(const Manifest& manifest) {
    REQUIRE(manifest.sequence == model_.sequence);
    REQUIRE(manifest.metadata == model_.metadata);
    std::map<std::uint32_t, Model::Content> found;
    for (const StoredBlock& b : manifest.blocks) {
      if (b.slot.valid()) found[b.slot.value] = {b.bytes, b.version, b.checksum, true};
    }
    REQUIRE(found == model_.committed);
  }

  const TemporaryFolder folder_;
  std::mt19937_64 random_;
  const Frames frames_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
  Model model_;
  std::uint64_t version_ = 0;
};

}  // namespace

TEST_CASE("random operations leave what a plain model says") {
  for (const IoWay& way : io_ways()) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      INFO(way.name << ", seed " << seed);
      const os::InterceptScope scope(interceptor_of(way));
      ModelTest test(way, seed);
      for (int i = 0; i < 120; ++i) test.operate();
    }
  }
}

}  // namespace transload::testing
