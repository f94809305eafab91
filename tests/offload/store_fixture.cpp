#include "offload/store_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/error.h"

namespace transload::testing {

TemporaryFolder::TemporaryFolder(bool quick) {
  const std::string parent = std::filesystem::temp_directory_path().string();
  for (const std::string& place : {std::string(quick ? "/dev/shm" : parent), parent}) {
    std::string pattern = place + "/transload-store-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) continue;
    path_ = pattern;
    return;
  }
  throw Error("no folder for temporary files");
}
TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::vector<IoWay> io_ways() {
  return {{"io_uring direct", IoPath::uring, true},
          {"io_uring buffered", IoPath::uring, false},
          {"threads direct", IoPath::threads, true},
          {"threads buffered", IoPath::threads, false}};
}

os::Interceptor interceptor_of(const IoWay& way) {
  return [direct = way.direct](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (!direct && op.kind == os::OpKind::open && (op.flags & O_DIRECT) != 0) return -EINVAL;
    return std::nullopt;
  };
}

void Waiter::done(const IoResult& result) noexcept {
  std::lock_guard lock(mutex_);
  result_ = result;
  ++times_;
  changed_.notify_all();
}
IoResult Waiter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return times_ > 0; });
  return result_;
}
int Waiter::times() {
  std::lock_guard lock(mutex_);
  return times_;
}

Frames::Frames(std::uint64_t bytes, std::uint64_t seed) : memory_(round_up(bytes, kBytes), true) {
  order_.resize(memory_.bytes() / kBytes);
  std::iota(order_.begin(), order_.end(), 0u);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
    if (random() % 4 != 0) std::swap(order_[i], order_[i + random() % (order_.size() - i)]);
  }
}

std::vector<IoSlice> Frames::slices(std::uint64_t bytes) const {
  std::vector<IoSlice> result;
  for (std::uint64_t at = 0; at < bytes; at += kBytes) {
    result.push_back({memory_.data() + order_.at(at / kBytes) * kBytes, std::min(kBytes, bytes - at)});
  }
  return result;
}

namespace {
template <class Fn>
void for_each_word(const std::vector<IoSlice>& slices, std::uint64_t block, std::uint64_t version, Fn&& fn) {
  std::uint64_t position = 0;
  for (const IoSlice& slice : slices) {
    for (std::uint64_t at = 0; at < slice.bytes; at += 8, ++position) {
      std::uint64_t word = (position + 1) * 0x9E3779B97F4A7C15ull ^ block * 0xC2B2AE3D27D4EB4Full ^ version << 17;
      word ^= word >> 29;
      if (!fn(slice.data + at, &word, std::min<std::uint64_t>(8, slice.bytes - at))) return;
    }
  }
}
}  // namespace

void fill_content(const std::vector<IoSlice>& slices, std::uint64_t block, std::uint64_t version) {
  for_each_word(slices, block, version, [](std::byte* to, const std::uint64_t* word, std::uint64_t n) {
    std::memcpy(to, word, n);
    return true;
  });
}
bool has_content(const std::vector<IoSlice>& slices, std::uint64_t block, std::uint64_t version) {
  bool same = true;
  for_each_word(slices, block, version, [&](const std::byte* found, const std::uint64_t* word, std::uint64_t n) {
    same = std::memcmp(found, word, n) == 0;
    return same;
  });
  return same;
}

IoResult write_block(Store& store, SlotId slot, const std::vector<IoSlice>& slices, const char* name) {
  Waiter waiter;
  store.submit_write(slot, slices, name, &waiter);
  return waiter.wait();
}
IoResult read_block(Store& store, SlotId slot, const std::vector<IoSlice>& slices, std::uint64_t checksum,
                    const char* name) {
  Waiter waiter;
  store.submit_read(slot, slices, checksum, name, &waiter);
  return waiter.wait();
}

std::string message_of(const IoResult& result) {
  if (result.error == nullptr) return {};
  try {
    std::rethrow_exception(result.error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

Run::Run(std::string folder, IoWay way, std::uint64_t seed)
    : folder_(std::move(folder)), way_(way), seed_(seed), frames_(256 * KiB, seed) {}

StoreOptions Run::options() const {
  StoreOptions options;
  options.folder = folder_;
  options.io = way_.path;
  options.queue_depth = 2;
  return options;
}

std::uint64_t Run::bytes_of(std::uint64_t block) const {
  constexpr std::uint64_t kSizes[] = {256, 4096, 40 * KiB + 256, 96 * KiB, 130 * KiB + 512};
  return kSizes[block % 5];
}

/// Each block changes in step 1 and then in about half of the steps.
std::uint64_t Run::version_at(std::uint64_t block, std::uint64_t step) const {
  for (; step > 1; --step) {
    if (std::mt19937_64(seed_ * 1000 + step * 100 + block)() % 2 == 0) break;
  }
  return step;
}

void Run::step(Store& store, std::uint64_t step) {
  for (std::uint64_t b = 0; b < kBlocks; ++b) {
    if (version_at(b, step) != step) continue;
    const std::uint64_t bytes = bytes_of(b);
    const SlotId slot = store.allocate(bytes);
    if (!slot.valid()) throw Error("no slot is free");
    const std::vector<IoSlice> slices = frames_.slices(bytes);
    fill_content(slices, b, step);
    const IoResult result = write_block(store, slot, slices);
    if (result.error != nullptr) std::rethrow_exception(result.error);
    if (blocks_[b].slot.valid()) store.free(blocks_[b].slot);
    blocks_[b] = {slot, step, bytes, result.checksum};
  }
}

void Run::carry_out(const std::function<void(std::uint64_t)>& commit_began,
                    const std::function<void(std::uint64_t)>& commit_ended) {
  blocks_.assign(kBlocks, StoredBlock{});
  std::unique_ptr<Store> store = Store::create(options(), {{64 * KiB, 6}, {160 * KiB, 4}}, {});
  for (std::uint64_t s = 1; s <= kSteps; ++s) {
    step(*store, s);
    commit_began(s);
    store->commit("step " + std::to_string(s), blocks_);
    commit_ended(s);
    if (s != kSteps / 2) continue;
    store->close();
    store.reset();
    store = Store::open(options(), {{64 * KiB, 7}, {160 * KiB, 4}}, {});
  }
  store->close();
}

std::optional<std::uint64_t> Run::check() {
  if (!Store::exists(folder_)) return std::nullopt;
  const auto store = Store::open(options(), {}, {});
  const Manifest manifest = store->committed();
  const std::uint64_t step = manifest.sequence;
  REQUIRE(manifest.metadata == "step " + std::to_string(step));
  REQUIRE(manifest.blocks.size() == kBlocks);
  for (std::uint64_t b = 0; b < kBlocks; ++b) {
    const StoredBlock& block = manifest.blocks[b];
    REQUIRE(block.version == version_at(b, step));
    const std::vector<IoSlice> slices = frames_.slices(block.bytes);
    REQUIRE(message_of(read_block(*store, block.slot, slices, block.checksum)).empty());
    REQUIRE(has_content(slices, b, block.version));
  }
  return step;
}

}  // namespace transload::testing
