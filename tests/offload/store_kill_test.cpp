// Processes that are killed, by the kernel's hardest signal, at every call and at any instant.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

/// Counters that a killed child leaves behind.
struct Shared {
  std::atomic<std::uint64_t> began{0}, ended{0}, calls{0};
};
class SharedPage {
 public:
  SharedPage()
      : page_(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        shared_(new (page_) Shared) {}
  ~SharedPage() { ::munmap(page_, sizeof(Shared)); }
  Shared* operator->() const { return shared_; }

 private:
  void* page_;
  Shared* shared_;
};

void carry_out(Run& run, SharedPage& shared) {
  run.carry_out([&](std::uint64_t s) { shared->began = s; }, [&](std::uint64_t s) { shared->ended = s; });
}

void check_after_kill(Run& run, SharedPage& shared, const IoWay& way) {
  const os::InterceptScope scope(interceptor_of(way));
  const auto found = run.check();
  REQUIRE(found.value_or(0) >= shared->ended);
  REQUIRE(found.value_or(0) <= shared->began);
}

}  // namespace

TEST_CASE("killed at every call that changes something: the last commit is whole, and the folder can be used") {
  for (const IoWay& way : {io_ways()[0], io_ways()[3]}) {
    std::uint64_t nth = 1;
    for (bool ended = false; !ended; ++nth) {
      INFO(way.name << ": killed at call " << nth);
      const TemporaryFolder folder(true);
      SharedPage shared;
      Run run(folder.file("store"), way, 11);
      ended = run_child([&] {
        const os::InterceptScope scope(os::either(interceptor_of(way), os::kill_at(os::changing_ops(), nth)));
        carry_out(run, shared);
      });
      check_after_kill(run, shared, way);
      if (shared->ended == 0 && !Store::exists(folder.file("store"))) {
        // What the dead run began is reclaimed by the next.
        const os::InterceptScope scope(interceptor_of(way));
        run.carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
        REQUIRE(run.check() == Run::kSteps);
      }
    }
    CHECK(nth > 50);
  }
}

TEST_CASE("killed in the middle of the manifest") {
  const IoWay way = io_ways()[0];
  for (const std::int64_t bytes : {1, 8, 87, 88, 200}) {
    const TemporaryFolder folder(true);
    SharedPage shared;
    Run run(folder.file("store"), way, 11);
    REQUIRE_FALSE(run_child([&] {
      auto writes = std::make_shared<std::atomic<int>>(0);
      // The third manifest is written in part, then the process dies.
      const os::InterceptScope scope([=](const os::IoOp& op) -> std::optional<std::int64_t> {
        if (!os::ops({os::OpKind::write}, "manifest.new").matches(op)) return std::nullopt;
        const int number = ++*writes;
        if (number == 3) return bytes;
        if (number == 4) ::kill(::getpid(), SIGKILL);
        return std::nullopt;
      });
      carry_out(run, shared);
    }));
    check_after_kill(run, shared, way);
  }
}

TEST_CASE("killed at random instants") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 30; ++i) {
    const IoWay way = io_ways()[static_cast<std::size_t>(i) % 4];
    const TemporaryFolder folder;
    SharedPage shared;
    Run run(folder.file("store"), way, static_cast<std::uint64_t>(i));
    const auto delay = std::chrono::microseconds(random() % 60000);
    INFO(way.name << ", killed after " << delay.count() << " us");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        const os::InterceptScope scope(interceptor_of(way));
        carry_out(run, shared);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    check_after_kill(run, shared, way);
  }
}

TEST_CASE("without durability an unclean end is refused, a clean one is not") {
  for (const bool clean : {true, false}) {
    const TemporaryFolder folder;
    StoreOptions options;
    options.folder = folder.file("store");
    options.durable = false;
    run_child([&] {
      const auto store = Store::create(options, {{64 * KiB, 1}}, {});
      const Frames frames(64 * KiB);
      const std::vector<IoSlice> slices = frames.slices(64 * KiB);
      std::vector<StoredBlock> blocks(1);
      for (std::uint64_t version = 1; version <= 3; ++version) {
        if (blocks[0].slot.valid()) store->free(blocks[0].slot);
        blocks[0].slot = store->allocate(64 * KiB);
        fill_content(slices, 0, version);
        blocks[0] = {blocks[0].slot, version, 64 * KiB, write_block(*store, blocks[0].slot, slices).checksum};
        store->commit("step", blocks);
      }
      if (clean) store->close();
    });
    if (!clean) {
      CHECK_THROWS_AS(Store::open(options, {}, {}), DamageError);
      CHECK_THROWS_AS(Store::open_read_only(options), DamageError);
      continue;
    }
    {
      const auto store = Store::open(options, {}, {});
      CHECK(store->committed().sequence == 3);
      const Frames frames(64 * KiB);
      const std::vector<IoSlice> slices = frames.slices(64 * KiB);
      const StoredBlock block = store->committed().blocks[0];
      CHECK(message_of(read_block(*store, block.slot, slices, block.checksum)).empty());
      CHECK(has_content(slices, 0, 3));
    }
    // Opened and not closed: open again.
    CHECK_THROWS_AS(Store::open(options, {}, {}), DamageError);
  }
}

TEST_CASE("without durability a close after the commit was overwritten keeps the mark") {
  const TemporaryFolder folder;
  StoreOptions options;
  options.folder = folder.file("store");
  options.durable = false;
  {
    const auto store = Store::create(options, {{64 * KiB, 1}}, {});
    const Frames frames(64 * KiB);
    const SlotId slot = store->allocate(64 * KiB);
    const IoResult written = write_block(*store, slot, frames.slices(64 * KiB));
    store->commit("step", std::vector<StoredBlock>{{slot, 1, 64 * KiB, written.checksum}});
    write_block(*store, slot, frames.slices(64 * KiB));
    store->close();
  }
  CHECK_THROWS_AS(Store::open(options, {}, {}), DamageError);
}

}  // namespace transload::testing
