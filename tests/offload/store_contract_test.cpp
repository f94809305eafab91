// What every way of doing I/O must do the same.
#include <fcntl.h>
#include <sys/uio.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

StoreOptions options_for(const TemporaryFolder& folder, const IoWay& way) {
  StoreOptions options;
  options.folder = folder.file("store");
  options.io = way.path;
  return options;
}

std::uint64_t checksum_of(const std::vector<IoSlice>& slices) {
  std::vector<std::byte> bytes;
  for (const IoSlice& slice : slices) bytes.insert(bytes.end(), slice.data, slice.data + slice.bytes);
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

TEST_CASE("the store says which way it goes and why") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    const auto store = Store::create(options_for(folder, way), {{4096, 1}}, {});
    const Store::Facts facts = store->facts();
    CHECK(facts.io_path == (way.path == IoPath::uring ? "io_uring" : "pread/pwrite"));
    CHECK(facts.io_reason == (way.path == IoPath::uring ? "" : "threads were asked for"));
    CHECK(facts.direct == way.direct);
    CHECK(facts.direct_reason.empty() == way.direct);
    CHECK(facts.alignment % 512 == 0);
    CHECK(facts.bytes_on_disk >= 8192);
  }
}

TEST_CASE("a block of any size comes back, and nothing beside it is touched") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    const std::uint64_t most = 5 * MiB;
    const auto store = Store::create(options_for(folder, way), {{most, 2}}, {});
    const Frames out(most, 1), in(most + 64 * KiB, 2);
    const SlotId slot = store->allocate(most);
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{256}, std::uint64_t{3840}, std::uint64_t{4096}, std::uint64_t{4352},
          32 * KiB - 256, 32 * KiB, 32 * KiB + 256, 2 * MiB - 256, 2 * MiB, 2 * MiB + 256, 4 * MiB + 3840, most}) {
      INFO(bytes);
      const std::vector<IoSlice> from = out.slices(bytes), to = in.slices(bytes);
      fill_content(from, 1, bytes);
      const IoResult written = write_block(*store, slot, from);
      REQUIRE(message_of(written).empty());
      CHECK(written.checksum == checksum_of(from));
      CHECK(has_content(from, 1, bytes));
      std::fill(in.all().begin(), in.all().end(), std::byte{0x5A});
      const IoResult read = read_block(*store, slot, to, written.checksum);
      REQUIRE(message_of(read).empty());
      CHECK(has_content(to, 1, bytes));
      const auto touched =
          in.all().size() - static_cast<std::size_t>(std::count(in.all().begin(), in.all().end(), std::byte{0x5A}));
      CHECK(touched <= bytes);
    }
  }
}

TEST_CASE("many small slices make one block") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    const std::uint64_t bytes = 1500 * 4096 + 256;  // more pieces than a vector may have
    const auto store = Store::create(options_for(folder, way), {{bytes, 1}}, {});
    const os::Memory memory(2 * bytes + 8192, true);
    std::vector<IoSlice> slices;
    for (std::uint64_t i = 0; i <= 1500; ++i) slices.push_back({memory.data() + 2 * i * 4096, i < 1500 ? 4096u : 256u});
    fill_content(slices, 3, 1);
    const SlotId slot = store->allocate(bytes);
    const IoResult written = write_block(*store, slot, slices);
    REQUIRE(message_of(written).empty());
    fill_content(slices, 9, 9);
    REQUIRE(message_of(read_block(*store, slot, slices, written.checksum)).empty());
    CHECK(has_content(slices, 3, 1));
  }
}

TEST_CASE("many blocks at once, both directions, each told once") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    constexpr std::uint64_t kBlocks = 60, kBytes = 96 * KiB + 256;
    const auto store = Store::create(options_for(folder, way), {{kBytes, 2 * kBlocks}}, {});
    std::vector<Frames> frames;
    std::vector<std::vector<IoSlice>> slices;
    std::vector<SlotId> slots;
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      slices.push_back(frames.emplace_back(128 * KiB, i).slices(kBytes));
      slots.push_back(store->allocate(kBytes));
      fill_content(slices[i], i, 1);
    }
    std::vector<Waiter> writes(kBlocks), reads(kBlocks), more_writes(kBlocks);
    for (std::uint64_t i = 0; i < kBlocks; ++i) store->submit_write(slots[i], slices[i], "block", &writes[i]);
    std::vector<std::uint64_t> checksums;
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      REQUIRE(message_of(writes[i].wait()).empty());
      checksums.push_back(writes[i].wait().checksum);
    }
    for (std::uint64_t i = 0; i < kBlocks; i += 2) fill_content(slices[i], 99, 99);
    for (std::uint64_t i = 0; i < kBlocks; i += 2) {
      store->submit_read(slots[i], slices[i], checksums[i], "block", &reads[i]);
      store->submit_write(slots[i + 1], slices[i + 1], "block", &more_writes[i]);
    }
    for (std::uint64_t i = 0; i < kBlocks; i += 2) {
      REQUIRE(message_of(reads[i].wait()).empty());
      REQUIRE(message_of(more_writes[i].wait()).empty());
      CHECK(has_content(slices[i], i, 1));
      CHECK(reads[i].times() == 1);
      CHECK(writes[i].times() == 1);
    }
    CHECK(store->facts().bytes_read == kBlocks / 2 * kBytes);
    CHECK(store->facts().bytes_written >= (kBlocks + kBlocks / 2) * kBytes);
    CHECK(store->facts().busy_read_ns > 0);
  }
}

TEST_CASE("a completion may submit the next block") {
  struct Chain final : Completion {
    void done(const IoResult& result) noexcept override {
      std::lock_guard lock(mutex);
      failed = failed || result.error != nullptr;
      if (--left > 0) {
        store->submit_write(slot, slices, "block", this);
      } else {
        changed.notify_all();
      }
    }
    Store* store = nullptr;
    SlotId slot;
    std::vector<IoSlice> slices;
    int left = 50;
    bool failed = false;
    std::mutex mutex;
    std::condition_variable changed;
  };
  for (const IoWay& way : io_ways()) {
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    const auto store = Store::create(options_for(folder, way), {{64 * KiB, 1}}, {});
    const Frames frames(64 * KiB);
    Chain chain;
    chain.store = store.get();
    chain.slot = store->allocate(1);
    chain.slices = frames.slices(64 * KiB);
    store->submit_write(chain.slot, chain.slices, "block", &chain);
    std::unique_lock lock(chain.mutex);
    chain.changed.wait(lock, [&] { return chain.left == 0; });
    CHECK_FALSE(chain.failed);
  }
}

TEST_CASE("destroying a store carries out what was submitted") {
  for (const IoWay& way : io_ways()) {
    const TemporaryFolder folder;
    const os::InterceptScope scope(interceptor_of(way));
    auto store = Store::create(options_for(folder, way), {{64 * KiB, 20}}, {});
    const Frames frames(64 * KiB);
    const std::vector<IoSlice> slices = frames.slices(64 * KiB);
    std::vector<Waiter> waiters(20);
    for (Waiter& waiter : waiters) store->submit_write(store->allocate(1), slices, "block", &waiter);
    store.reset();
    for (Waiter& waiter : waiters) CHECK(waiter.times() == 1);
  }
}

TEST_CASE("commits survive reopening, by any other way too") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    Run run(folder.file("store"), way, 5);
    {
      const os::InterceptScope scope(interceptor_of(way));
      run.carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
    }
    for (const IoWay& other : io_ways()) {
      const os::InterceptScope scope(interceptor_of(other));
      CHECK(Run(folder.file("store"), other, 5).check() == Run::kSteps);
    }
  }
}

TEST_CASE("io_uring refused by the system means threads, with the cause") {
  const TemporaryFolder folder;
  StoreOptions options = options_for(folder, io_ways()[0]);
  for (const auto& [error, part] :
       {std::pair{EPERM, "forbidden"}, {ENOSYS, "this kernel has none"}, {ENOMEM, "ulimit -l"}}) {
    options.folder = folder.file(std::to_string(error));
    const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::io_uring_setup}), 1, -error, true));
    const auto store = Store::create(options, {{64 * KiB, 1}}, {});
    CHECK(store->facts().io_path == "pread/pwrite");
    CHECK(store->facts().io_reason.find(std::strerror(error)) != std::string::npos);
    CHECK(store->facts().io_reason.find(part) != std::string::npos);
    const Frames frames(64 * KiB);
    CHECK(message_of(write_block(*store, store->allocate(1), frames.slices(64 * KiB))).empty());
  }
  // Set-up flags that an older kernel does not know are left out.
  options.folder = folder.file("old");
  const os::InterceptScope scope([](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (op.kind == os::OpKind::io_uring_setup && op.flags != 0) return -EINVAL;
    return std::nullopt;
  });
  CHECK(Store::create(options, {{64 * KiB, 1}}, {})->facts().io_path == "io_uring");
}

TEST_CASE("a ring that sets up and cannot read is found out") {
  const TemporaryFolder folder;
  const StoreOptions options = options_for(folder, io_ways()[0]);
  // The second read of 4096 bytes at 0 after opening is the probe of the first ring.
  auto armed = std::make_shared<std::atomic<bool>>(false);
  const os::InterceptScope scope([armed](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (op.kind == os::OpKind::io_uring_setup) *armed = true;
    if (op.kind == os::OpKind::read && *armed) {
      *armed = false;
      return -EOPNOTSUPP;
    }
    return std::nullopt;
  });
  const auto store = Store::create(options, {{64 * KiB, 1}}, {});
  CHECK(store->facts().io_path == "pread/pwrite");
  CHECK(store->facts().io_reason.find("a first read through io_uring: Operation not supported") != std::string::npos);
}

}  // namespace transload::testing
