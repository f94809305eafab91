// The real store over calls that fail, shorten and are refused.
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

using os::OpKind;

std::uint64_t count_calls(const IoWay& way, const os::OpFilter& filter) {
  const TemporaryFolder folder(true);
  auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
  const os::InterceptScope scope(os::either(interceptor_of(way), os::count_into(filter, count)));
  Run(folder.file("store"), way, 7).carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
  return *count;
}

/// Everything but close, whose answer is not used, and maps.
os::OpFilter all_ops() {
  os::OpFilter filter = os::changing_ops();
  filter.kinds |= os::ops({OpKind::read, OpKind::stat, OpKind::lock, OpKind::list, OpKind::io_uring_setup}).kinds;
  return filter;
}

}  // namespace

TEST_CASE("any call fails: the last commit stays whole") {
  for (const IoWay& way : {io_ways()[0], io_ways()[3]}) {
    const std::uint64_t calls = count_calls(way, all_ops());
    CHECK(calls > 60);
    std::uint64_t failures = 0;
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      const int error = nth % 2 == 0 ? EIO : ENOSPC;
      INFO(way.name << ": call " << nth << " of " << calls << " fails");
      const TemporaryFolder folder(true);
      Run run(folder.file("store"), way, 7);
      std::uint64_t began = 0, ended = 0;
      try {
        const os::InterceptScope scope(os::either(interceptor_of(way), os::fail_at(all_ops(), nth, -error)));
        run.carry_out([&](std::uint64_t s) { began = s; }, [&](std::uint64_t s) { ended = s; });
      } catch (const Error&) {
        ++failures;
      }
      const os::InterceptScope scope(interceptor_of(way));
      const auto found = run.check();
      // A commit that failed while its folder was made durable may be there or not; any other failed one is not.
      REQUIRE(found.value_or(0) >= ended);
      REQUIRE(found.value_or(0) <= began);
    }
    CHECK(failures > calls / 2);  // the rest has a fall-back
  }
}

TEST_CASE("any read or write is short or refused for the moment: nothing is noticed") {
  const os::OpFilter transfers = os::ops({OpKind::read, OpKind::write});
  for (const IoWay& way : {io_ways()[0], io_ways()[2], io_ways()[3]}) {
    const std::uint64_t calls = count_calls(way, transfers);
    for (const std::int64_t answer : {std::int64_t{-EAGAIN}, std::int64_t{-EINTR}, std::int64_t{4096}}) {
      for (std::uint64_t nth = 1; nth <= calls; nth += 1 + nth / 8) {
        INFO(way.name << ": call " << nth << " of " << calls << " answers " << answer);
        const TemporaryFolder folder(true);
        Run run(folder.file("store"), way, 7);
        {
          const os::InterceptScope scope(os::either(interceptor_of(way), os::fail_at(transfers, nth, answer)));
          run.carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
        }
        const os::InterceptScope scope(interceptor_of(way));
        REQUIRE(run.check() == Run::kSteps);
      }
    }
  }
}

TEST_CASE("every transfer is short: blocks still come through whole") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    StoreOptions options;
    options.folder = folder.file("store");
    options.io = way.path;
    const auto shorten = [](const os::IoOp& op) -> std::optional<std::int64_t> {
      const bool transfer = op.kind == OpKind::read || op.kind == OpKind::write;
      if (!transfer || op.bytes <= 8192) return std::nullopt;
      return static_cast<std::int64_t>(op.bytes / 2 + 100);  // no multiple of any alignment
    };
    const Frames frames(3 * MiB);
    const std::vector<IoSlice> slices = frames.slices(3 * MiB - 256);
    std::unique_ptr<Store> store;
    {
      const os::InterceptScope scope(interceptor_of(way));
      store = Store::create(options, {{3 * MiB, 1}}, {});
    }
    const os::InterceptScope scope(shorten);
    const SlotId slot = store->allocate(3 * MiB);
    fill_content(slices, 1, 1);
    const IoResult written = write_block(*store, slot, slices);
    REQUIRE(message_of(written).empty());
    fill_content(slices, 2, 2);
    REQUIRE(message_of(read_block(*store, slot, slices, written.checksum)).empty());
    CHECK(has_content(slices, 1, 1));
  }
}

TEST_CASE("an error reaches its own waiter once, by name, and no other") {
  for (const IoWay& way : io_ways()) {
    for (const OpKind kind : {OpKind::write, OpKind::read}) {
      INFO(way.name << ", " << os::name_of(kind));
      const TemporaryFolder folder;
      StoreOptions options;
      options.folder = folder.file("store");
      options.io = way.path;
      constexpr std::uint64_t kBytes = 5 * MiB;  // three requests each
      const os::Interceptor base = interceptor_of(way);
      std::unique_ptr<Store> store;
      {
        const os::InterceptScope scope(base);
        store = Store::create(options, {{kBytes, 4}}, {});
      }
      std::vector<Frames> frames;
      std::vector<std::vector<IoSlice>> slices;
      std::vector<SlotId> slots;
      std::uint64_t checksum = 0;
      for (int i = 0; i < 4; ++i) {
        slices.push_back(frames.emplace_back(kBytes).slices(kBytes));
        fill_content(slices.back(), 1, 1);
        slots.push_back(store->allocate(kBytes));
        checksum = write_block(*store, slots.back(), slices.back()).checksum;
      }
      // The middle of the third block fails.
      const std::uint64_t at = 4096 + 2 * kBytes + 2 * MiB;
      std::vector<Waiter> waiters(4);
      {
        const os::InterceptScope scope([&](const os::IoOp& op) -> std::optional<std::int64_t> {
          if (op.kind == kind && op.offset == at) return -EIO;
          return std::nullopt;
        });
        for (std::size_t i = 0; i < 4; ++i) {
          if (kind == OpKind::write) store->submit_write(slots[i], slices[i], "chunk 12 moment1", &waiters[i]);
          if (kind == OpKind::read) store->submit_read(slots[i], slices[i], checksum, "chunk 12 moment1", &waiters[i]);
        }
        for (Waiter& waiter : waiters) waiter.wait();
      }
      for (std::size_t i = 0; i < 4; ++i) {
        INFO(i);
        CHECK(waiters[i].times() == 1);
        const std::string message = message_of(waiters[i].wait());
        CHECK(message.empty() == (i != 2));
        if (i != 2) continue;
        CHECK(message.find("slots-0000") != std::string::npos);
        CHECK(message.find("chunk 12 moment1") != std::string::npos);
        CHECK(message.find("Input/output error") != std::string::npos);
        CHECK(message.find("wanted 2097152 bytes, got 0") != std::string::npos);
        CHECK_THROWS_AS(std::rethrow_exception(waiters[i].wait().error), IoError);
      }
      CHECK(message_of(write_block(*store, slots[2], slices[2])).empty());
    }
  }
}

TEST_CASE("after a sync that failed nothing is committed any more") {
  const TemporaryFolder folder;
  StoreOptions options;
  options.folder = folder.file("store");
  auto store = Store::create(options, {{64 * KiB, 4}}, {});
  const Frames frames(64 * KiB);
  const std::vector<IoSlice> slices = frames.slices(64 * KiB);
  const SlotId slot = store->allocate(64 * KiB);
  const IoResult written = write_block(*store, slot, slices);
  const std::vector<StoredBlock> blocks = {{slot, 1, 64 * KiB, written.checksum}};
  store->commit("first", blocks);
  const SlotId next = store->allocate(64 * KiB);
  write_block(*store, next, slices);
  {
    const os::InterceptScope scope(os::fail_at(os::ops({OpKind::sync}, "slots-"), 1, -EIO));
    CHECK_THROWS_AS(store->commit("second", blocks), IoError);
  }
  CHECK_THROWS_AS(store->commit("third", blocks), IoError);
  CHECK(store->committed().metadata == "first");
  store.reset();
  CHECK(Store::read_manifest(options.folder).metadata == "first");
}

TEST_CASE("a commit that found no room can be tried again") {
  const TemporaryFolder folder;
  StoreOptions options;
  options.folder = folder.file("store");
  const auto store = Store::create(options, {{64 * KiB, 4}}, {});
  store->commit("first", {});
  for (const OpKind kind : {OpKind::open, OpKind::write, OpKind::sync, OpKind::rename}) {
    INFO(os::name_of(kind));
    const std::string path = kind == OpKind::rename ? "manifest" : "manifest.new";
    const os::InterceptScope scope(os::fail_at(os::ops({kind}, path), 1, -ENOSPC));
    try {
      store->commit("second", {});
      FAIL("no error");
    } catch (const IoError& error) {
      CHECK(std::string(error.what()).find("the last commit is whole") != std::string::npos);
      CHECK(std::string(error.what()).find("free") != std::string::npos);
    }
    CHECK(store->committed().metadata == "first");
    CHECK(Store::read_manifest(options.folder).metadata == "first");
  }
  store->commit("second", {});
  CHECK(Store::read_manifest(options.folder).metadata == "second");
  CHECK(Store::read_manifest(options.folder).sequence == 2);
}

TEST_CASE("no room at creation: numbers, and nothing is left") {
  const TemporaryFolder folder;
  StoreOptions options;
  options.folder = folder.file("store");
  options.capacity_bytes = 6 * MiB;
  try {
    Store::create(options, {{MiB, 3}}, {});
    FAIL("no error");
  } catch (const BudgetError& error) {
    CHECK(error.needed_bytes == 3 * MiB + 4096 + 4 * MiB);
    CHECK(error.given_bytes == 6 * MiB);
  }
  options.capacity_bytes = UINT64_MAX;
  CHECK_THROWS_AS(Store::create(options, {{1ull << 50, 3}}, {}), IoError);
  for (const OpKind kind : {OpKind::allocate, OpKind::write, OpKind::sync}) {
    const os::InterceptScope scope(os::fail_at(os::ops({kind}, "slots-0001"), 1, -ENOSPC));
    CHECK_THROWS_AS(Store::create(options, {{64 * KiB, 2}, {MiB, 3}}, {}), IoError);
  }
  std::vector<std::string> names;
  REQUIRE(os::list_folder(options.folder, &names) == 0);
  CHECK(names == std::vector<std::string>{"lock"});
  options.capacity_bytes = 7 * MiB + 4096;
  CHECK(Store::create(options, {{MiB, 3}}, {}) != nullptr);
}

TEST_CASE("a file system without fallocate is written through all the same") {
  const TemporaryFolder folder;
  StoreOptions options;
  options.folder = folder.file("store");
  const os::InterceptScope scope(os::fail_at(os::ops({OpKind::allocate}), 1, -EOPNOTSUPP, true));
  Store::create(options, {{MiB, 3}}, {});
  CHECK(std::filesystem::file_size(options.folder + "/slots-0000") == 3 * MiB + 4096);
}

}  // namespace transload::testing
