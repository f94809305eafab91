// A commit in two halves, for stores that commit together: whatever happens in between, the store can be opened at the
// commit before or, once it was prepared, at the new one, as whoever decides for all of them wants it.
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>

#include "base/error.h"
#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

using os::OpKind;

constexpr std::uint64_t kBytes = 40 * KiB + 256;
constexpr std::uint64_t kBlocks = 3;

StoreOptions options_of(const TemporaryFolder& folder, std::optional<std::uint64_t> wanted = std::nullopt) {
  StoreOptions options;
  options.folder = folder.file("store");
  options.io = IoPath::threads;
  options.queue_depth = 2;
  options.wanted = wanted;
  return options;
}

/// A store whose blocks are written anew for each commit; block b of commit n has content (b, n).
class Victim {
 public:
  explicit Victim(const StoreOptions& options)
      : frames_(64 * KiB), store_(Store::create(options, {{64 * KiB, 2 * kBlocks}}, {})), blocks_(kBlocks) {}

  void write(std::uint64_t commit) {
    for (std::uint64_t b = 0; b < kBlocks; ++b) {
      const SlotId slot = store_->allocate(kBytes);
      REQUIRE(slot.valid());
      const std::vector<IoSlice> slices = frames_.slices(kBytes);
      fill_content(slices, b, commit);
      const IoResult result = write_block(*store_, slot, slices);
      if (result.error != nullptr) std::rethrow_exception(result.error);
      if (blocks_[b].slot.valid()) store_->free(blocks_[b].slot);
      blocks_[b] = {slot, commit, kBytes, result.checksum};
    }
  }
  void prepare(std::uint64_t commit) { store_->prepare("commit " + std::to_string(commit), blocks_); }
  Store& store() { return *store_; }
  void commit(std::uint64_t number) {
    write(number);
    prepare(number);
    store_->finish();
  }

 private:
  Frames frames_;
  std::unique_ptr<Store> store_;
  std::vector<StoredBlock> blocks_;
};

void check_content(const StoreOptions& options, std::uint64_t commit, bool read_only) {
  INFO("commit " << commit << (read_only ? ", to read" : ", to write"));
  const auto store = read_only ? Store::open_read_only(options) : Store::open(options, {}, {});
  REQUIRE(store->committed().sequence == commit);
  REQUIRE(store->committed().metadata == "commit " + std::to_string(commit));
  const Frames frames(64 * KiB);
  for (std::uint64_t b = 0; b < kBlocks; ++b) {
    const StoredBlock& block = store->committed().blocks[b];
    const std::vector<IoSlice> slices = frames.slices(kBytes);
    REQUIRE(message_of(read_block(*store, block.slot, slices, block.checksum)).empty());
    REQUIRE(has_content(slices, b, commit));
  }
}

/// Whole to readers, which change nothing, then to a writer, and then to whoever asks for no number.
void check_opens_at(const TemporaryFolder& folder, std::uint64_t commit) {
  for (const bool read_only : {true, true, false, true}) check_content(options_of(folder, commit), commit, read_only);
  check_content(options_of(folder), commit, true);
}

bool opens_at(const TemporaryFolder& folder, std::uint64_t commit) {
  try {
    Store::open_read_only(options_of(folder, commit));
    return true;
  } catch (const DamageError&) {
    return false;
  }
}

os::OpFilter all_ops() {
  os::OpFilter filter = os::changing_ops();
  filter.kinds |= os::ops({OpKind::read, OpKind::stat, OpKind::lock, OpKind::list}).kinds;
  return filter;
}

/// How far a victim got, for the parent to see.
struct Progress {
  std::atomic<int> prepared{0};
};
class SharedProgress {
 public:
  SharedProgress()
      : page_(::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        progress_(new (page_) Progress) {}
  ~SharedProgress() { ::munmap(page_, sizeof(Progress)); }
  Progress* operator->() const { return progress_; }
  Progress& operator*() const { return *progress_; }

 private:
  void* page_;
  Progress* progress_;
};

enum class End { finish, drop };

/// Commits 1 and 2 under `interceptor`'s eyes; both in halves, the second finished or dropped.
void carry_out(const TemporaryFolder& folder, End end, const os::Interceptor& interceptor, Progress& progress) {
  Victim victim(options_of(folder));
  victim.commit(1);
  victim.write(2);
  const os::InterceptScope scope(interceptor);
  victim.prepare(2);
  progress.prepared = 1;
  if (end == End::finish) victim.store().finish();
  if (end == End::drop) victim.store().drop();
}

/// Whoever decides for all stores may ask for commit 2 once it is prepared here; otherwise, and after a drop, for 1.
void check_after(const TemporaryFolder& folder, End end, const Progress& progress) {
  if (progress.prepared != 0 && end == End::finish) return check_opens_at(folder, 2);
  check_opens_at(folder, 1);
  REQUIRE_FALSE(opens_at(folder, 2));  // the writer has dropped what was prepared
}

std::uint64_t count_calls(End end, const os::OpFilter& filter) {
  const TemporaryFolder folder(true);
  const auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
  Progress progress;
  carry_out(folder, end, os::count_into(filter, count), progress);
  return *count;
}

}  // namespace

TEST_CASE("a prepared commit is finished, dropped, or left for the next one to decide") {
  const TemporaryFolder folder;
  Victim victim(options_of(folder));
  victim.commit(1);
  victim.write(2);
  victim.prepare(2);
  CHECK(victim.store().committed().sequence == 1);
  CHECK(Store::read_manifest(folder.file("store")).sequence == 1);
  CHECK(Store::read_manifest(folder.file("store"), 2).metadata == "commit 2");
  REQUIRE(Store::prepared(folder.file("store")));
  CHECK(Store::prepared(folder.file("store"))->store_id == victim.store().committed().store_id);

  victim.store().drop();
  CHECK_FALSE(Store::prepared(folder.file("store")));
  CHECK(victim.store().committed().sequence == 1);
  // The slots of the dropped commit are in use still, and go on to the next one.
  victim.prepare(2);
  victim.store().finish();
  CHECK(victim.store().committed().metadata == "commit 2");
  victim.commit(3);
}

TEST_CASE("the first commit of a store may be a prepared one") {
  const TemporaryFolder folder;
  {
    Victim victim(options_of(folder));
    victim.write(1);
    victim.prepare(1);
  }
  CHECK_FALSE(Store::exists(folder.file("store")));
  CHECK_THROWS_AS(Store::open_read_only(options_of(folder)), InputError);
  check_opens_at(folder, 1);
  CHECK(Store::exists(folder.file("store")));
}

TEST_CASE("a store without the wanted commit says what it has") {
  const TemporaryFolder folder;
  {
    Victim victim(options_of(folder));
    victim.commit(1);
    victim.commit(2);
    victim.write(3);
    victim.prepare(3);
  }
  const auto message = [&](std::uint64_t wanted) -> std::string {
    try {
      Store::open(options_of(folder, wanted), {}, {});
    } catch (const DamageError& error) {
      return error.what();
    }
    return "";
  };
  for (const std::uint64_t wanted : {1, 4}) {
    CHECK(message(wanted).find(folder.file("store")) != std::string::npos);
    CHECK(message(wanted).find("commit " + std::to_string(wanted) + ", which is wanted") != std::string::npos);
    CHECK(message(wanted).find("commit 2 is the last one") != std::string::npos);
    CHECK(message(wanted).find("commit 3 is prepared") != std::string::npos);
  }
  // A refused opening has changed nothing.
  CHECK(opens_at(folder, 3));
  {
    const os::File file = os::File::open_or_throw(folder.file("store/manifest.new"), 2);
    file.write_or_throw("x", 1, 100);
  }
  CHECK(message(3).find("damaged") != std::string::npos);
  check_opens_at(folder, 2);
}

TEST_CASE("any call of a commit in halves fails: the store opens at the commit before, or at the new one") {
  for (const End end : {End::finish, End::drop}) {
    const std::uint64_t calls = count_calls(end, all_ops());
    CHECK(calls >= 6);
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      for (const bool sticky : {false, true}) {
        INFO("call " << nth << " of " << calls << " fails, " << (end == End::finish ? "finish" : "drop"));
        const TemporaryFolder folder(true);
        Progress progress;
        bool failed = false;
        try {
          carry_out(folder, end, os::fail_at(all_ops(), nth, nth % 2 == 0 ? -EIO : -ENOSPC, sticky), progress);
        } catch (const IoError&) {
          failed = true;
        }
        CHECK((failed || (end == End::drop && nth == calls)));  // what is not removed now is dropped later
        check_after(folder, end, progress);
      }
    }
  }
}

TEST_CASE("killed at any call of a commit in halves: the store opens at the commit before, or at the new one") {
  for (const End end : {End::finish, End::drop}) {
    std::uint64_t nth = 1;
    for (bool ended = false; !ended; ++nth) {
      INFO("killed at call " << nth << ", " << (end == End::finish ? "finish" : "drop"));
      const TemporaryFolder folder(true);
      SharedProgress progress;
      ended = run_child([&] { carry_out(folder, end, os::kill_at(os::changing_ops(), nth), *progress); });
      check_after(folder, end, *progress);
    }
    CHECK(nth >= 6);
  }
}

TEST_CASE("killed or failing while a prepared commit is finished by the next one: it can be finished still") {
  std::uint64_t nth = 1;
  for (bool ended = false; !ended; ++nth) {
    INFO("killed at call " << nth);
    const TemporaryFolder folder(true);
    {
      Victim victim(options_of(folder));
      victim.commit(1);
      victim.write(2);
      victim.prepare(2);
    }
    ended = run_child([&] {
      const os::InterceptScope scope(os::kill_at(os::changing_ops(), nth));
      Store::open(options_of(folder, 2), {}, {});
    });
    try {
      const os::InterceptScope scope(os::fail_at(os::changing_ops(), nth, -EIO));
      Store::open(options_of(folder, 2), {}, {});
    } catch (const Error&) {
      // Not opened: the next one tries again.
    }
    check_opens_at(folder, 2);
  }
  CHECK(nth > 3);
}

TEST_CASE("after a finish that failed nothing is committed any more") {
  for (const OpKind kind : {OpKind::rename, OpKind::sync}) {
    INFO(os::name_of(kind));
    const TemporaryFolder folder;
    {
      Victim victim(options_of(folder));
      victim.commit(1);
      victim.write(2);
      victim.prepare(2);
      const os::InterceptScope scope(os::fail_at(os::ops({kind}), 1, -EIO));
      CHECK_THROWS_AS(victim.store().finish(), IoError);
      CHECK_THROWS_AS(victim.store().finish(), IoError);
      CHECK(victim.store().committed().sequence == 1);
    }
    check_opens_at(folder, 2);
  }
}

TEST_CASE("a store is removed with all that is its own, and nothing else") {
  const TemporaryFolder folder;
  Store::remove(folder.file("store"));  // there is none
  {
    Victim victim(options_of(folder));
    victim.commit(1);
    CHECK_THROWS_AS(Store::remove(folder.file("store")), InputError);
    victim.write(2);
    victim.prepare(2);
  }
  std::vector<std::string> names;
  {  // interrupted, it is known as a store still
    const os::InterceptScope scope(os::fail_at(os::ops({OpKind::remove}, "/manifest"), 1, -EIO));
    CHECK_THROWS_AS(Store::remove(folder.file("store")), IoError);
    CHECK(Store::read_manifest(folder.file("store")).sequence == 1);
  }
  { const os::File own = os::File::open_or_throw(folder.file("store/notes"), 0101); }
  Store::remove(folder.file("store"));
  REQUIRE(os::list_folder(folder.file("store"), &names) == 0);
  CHECK(names == std::vector<std::string>{"notes"});
  os::remove(folder.file("store/notes"));
  Store::remove(folder.file("store"));
  CHECK(os::kind_of(folder.file("store")) == os::PathKind::missing);
}

}  // namespace transload::testing
