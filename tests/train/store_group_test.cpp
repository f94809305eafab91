// Stores of many ranks commit together or not at all; what is missing, damaged or another run's is named.
#include "train/store_group.h"

#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>

#include "base/faults.h"
#include "child_process.h"
#include "train/many_ranks.h"
#include "train/safetensors.h"

using namespace transload;
using namespace transload::testing;
using Catch::Matchers::Contains;
using os::OpKind;

namespace {

namespace fs = std::filesystem;

void go_on_as(const std::string& run, const Shape& shape, const Then& then = {}) {
  World(shape.ranks).run_well([&](Peers& peers) { go_on({run, ""}, shape, peers, then); });
}

os::OpFilter all_ops(const std::string& path_part = "") {
  os::OpFilter filter = os::changing_ops();
  filter.kinds |= os::ops({OpKind::read, OpKind::stat, OpKind::lock, OpKind::list}).kinds;
  filter.path_part = path_part;
  return filter;
}

/// A run of three ranks at step 1, to copy.
class Begun {
 public:
  Begun() { go_on_as(folder_.path("begun"), {.ranks = 3}); }
  std::string copy() {
    const std::string run = folder_.path(fmt::format("run{}", copies_++));
    fs::copy(folder_.path("begun"), run, fs::copy_options::recursive);
    return run;
  }

 private:
  TempFolder folder_{true};
  int copies_ = 0;
};

/// What is done to a run that something happens to.
struct Deed {
  const char* name;
  Shape shape;
  Then then;
  std::uint64_t step;  ///< that it would reach

  bool is_commit() const { return then && shape.ranks == 3; }
};
std::vector<Deed> deeds() {
  return {{"a commit of all ranks", {.ranks = 3}, to_step(2), 2},
          {"fewer ranks", {.ranks = 2, .chunk_bytes = 7 * KiB}, {}, 1},
          {"one rank", {.ranks = 1}, {}, 1},
          {"more ranks, and a step", {.ranks = 4}, to_step(2), 2}};
}

/// Whole, and nothing between two commits; goes on to the end and leaves one group.
void check_after(const std::string& run, const Deed& deed, bool done) {
  const std::uint64_t step = check_run(run);
  REQUIRE(verify_run(run, {}).empty());
  REQUIRE((step == 1 || step == deed.step));
  if (done) REQUIRE(step == deed.step);
  go_on_as(run, deed.shape, to_step(5));
  REQUIRE(check_run(run) == 5);
  REQUIRE(stores_in(run).size() == deed.shape.ranks);
}

std::uint64_t count_calls(const std::string& run, const Deed& deed, const os::OpFilter& filter) {
  const auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
  const os::InterceptScope scope(os::count_into(filter, count));
  go_on_as(run, deed.shape, deed.then);
  return *count;
}

}  // namespace

TEST_CASE("A group's file survives the way to disk and back, and what is wrong with it is said", "[group]") {
  const TempFolder folder(true);
  const GroupFile group{new_run_id(), 3, 17, 400, {1, UINT64_MAX, 0}};
  CHECK(group.run_id.size() == 32);
  CHECK(new_run_id() != group.run_id);
  CHECK_FALSE(read_group_file(folder.path()));
  CHECK(write_group_file(folder.path(), group).written == Written::yes);
  CHECK(read_group_file(folder.path()) == group);
  const std::string text = read_whole(group_path(folder.path()));
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return MESSAGE_OF(DamageError, parse_group(other, "runs/x"));
  };
  CHECK_THAT(broken("\"commit\":17", "\"commit\":-1"), Contains("runs/x") && Contains("commit"));
  CHECK_THAT(broken("\"ranks\":3", "\"ranks\":4"), Contains("3 stores for 4 ranks"));
  CHECK_THAT(broken("ffffffffffffffff", "fffffffffffffffg"), Contains("no store's id"));
  CHECK_THAT(broken("\"format\":1", "\"format\":2"), Contains("format is 2"));
  CHECK_THAT(broken("\"run_id\"", "\"run\""), Contains("run_id"));
  CHECK_THAT(broken("}", ""), Contains("not valid JSON"));

  const std::uint64_t calls = [&] {
    const auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
    const os::InterceptScope scope(os::count_into(os::changing_ops(), count));
    write_group_file(folder.path(), group);
    return count->load();
  }();
  CHECK(calls == 6);
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    GroupFile next = group;
    next.commit = 18;
    const os::InterceptScope scope(os::fail_at(os::changing_ops(), nth, -EIO));
    const WriteResult result = write_group_file(folder.path(), next);
    CHECK(result.written == (nth <= 4 ? Written::no : Written::unknown));
    CHECK_THAT(result.problem, Contains("Input/output error"));
    if (nth <= 5) CHECK(read_group_file(folder.path()) == group);
  }
}

TEST_CASE("One rank that never had others writes no group.json", "[group]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  go_on_as(run, {});
  go_on_as(run, {}, to_step(2));
  CHECK(check_run(run) == 2);
  CHECK(stores_in(run) == std::vector<std::string>{"store"});
  CHECK_FALSE(read_group_file(run));
  const CheckpointMeta meta = parse_meta(Store::read_manifest(run + "/store").metadata, "");
  CHECK((meta.run_id.size() == 32 && meta.group == 0));
}

TEST_CASE("One rank that had others goes on without writing group.json again", "[group]") {
  Begun begun;
  const std::string run = begun.copy();
  go_on_as(run, {});
  const std::string text = read_whole(group_path(run));
  go_on_as(run, {}, to_step(2));
  CHECK(read_whole(group_path(run)) == text);
  CHECK(check_run(run) == 2);
}

TEST_CASE("Killed at any call, a run of ranks is whole at the commit before or at the new one", "[group]") {
  Begun begun;
  for (const Deed& deed : deeds()) {
    std::uint64_t nth = 1;
    for (bool ended = false; !ended; nth += deed.is_commit() ? 1 : 1 + nth / 8) {  // some of the many that make stores
      INFO(deed.name << ", killed at call " << nth);
      const std::string run = begun.copy();
      ended = run_child([&] {
        const os::InterceptScope scope(os::kill_at(os::changing_ops(), nth));
        go_on_as(run, deed.shape, deed.then);
      });
      check_after(run, deed, ended);
      fs::remove_all(run);
    }
    CHECK(nth > 40);
  }
}

TEST_CASE("Any call of a commit or a resharding fails: the run is whole, and what is reported as done is", "[group]") {
  Begun begun;
  for (const Deed& deed : deeds()) {
    for (const char* where : {"group.json", "-r1/manifest", ""}) {
      const os::OpFilter filter = all_ops(where);
      const std::uint64_t calls = count_calls(begun.copy(), deed, filter);
      for (std::uint64_t nth = 1; nth <= calls; nth += *where != '\0' && deed.is_commit() ? 1 : 1 + nth / 8) {
        INFO(deed.name << ": call " << nth << " of " << calls << " in " << where << " fails");
        const std::string run = begun.copy();
        std::vector<std::exception_ptr> errors;
        {
          const os::InterceptScope scope(os::fail_at(filter, nth, nth % 2 == 0 ? -EIO : -ENOSPC));
          errors = World(deed.shape.ranks).run([&](Peers& peers) { go_on({run, ""}, deed.shape, peers, deed.then); });
        }
        bool done = true;
        for (const std::exception_ptr& error : errors) {
          done = done && !error;
          if (error) CHECK_THROWS_AS(std::rethrow_exception(error), Error);
        }
        check_after(run, deed, done);
        fs::remove_all(run);
      }
    }
  }
}

TEST_CASE("A rank that cannot prepare stops the commit of all, and it can be made again", "[group]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  go_on_as(run, {.ranks = 3});
  std::atomic<int> refused{0};
  World(3).run_well([&](Peers& peers) {
    RunStores stores({run, ""}, peers);
    StoreOptions options;
    options.folder = stores.place(peers.rank());
    options.wanted = stores.wanted(peers.rank());
    const auto store = Store::open(options, {}, {});
    CheckpointMeta meta = parse_meta(store->committed().metadata, "");
    const std::vector<StoredBlock> blocks = store->committed().blocks;
    WorldCommit commits(run, meta.run_id, meta.group, peers);
    {
      std::optional<os::InterceptScope> scope;
      if (peers.rank() == 0) scope.emplace(os::fail_at(os::ops({OpKind::write}, "g0-r2/manifest"), 1, -ENOSPC));
      peers.exchange("");
      try {
        commits.commit(*store, to_json(meta), blocks, 1);
      } catch (const Error& error) {
        const bool says = std::string(error.what()).find("g0-r2/manifest") != std::string::npos;
        refused += says ? 1 : 0;
      }
      peers.exchange("");
    }
    CHECK(store->committed().sequence == 1);
    CHECK_FALSE(Store::prepared(options.folder));
    commits.commit(*store, to_json(meta), blocks, 1);
    CHECK(store->committed().sequence == 2);
  });
  CHECK(refused == 3);
  CHECK(read_group_file(run)->commit == 2);
  CHECK(check_run(run) == 1);
}

TEST_CASE("Where it is open whether group.json was replaced, nothing more is committed", "[group]") {
  const OpKind kind = GENERATE(OpKind::rename, OpKind::sync);
  const TempFolder folder(true);
  const std::string run = folder.path("run");
  go_on_as(run, {.ranks = 2});
  {
    // Of the syncs of the run folder itself.
    const os::InterceptScope scope([&](const os::IoOp& op) -> std::optional<std::int64_t> {
      const std::string path = kind == OpKind::rename ? group_path(run) : run;
      if (op.kind == kind && path == op.path) return -EIO;
      return std::nullopt;
    });
    const auto errors = World(2).run([&](Peers& peers) {
      go_on({run, ""}, {.ranks = 2}, peers,
            [&](RankState& state, WorldCommit& commits, const std::string& run_id, std::uint64_t group) {
              state.fill(2);
              CHECK_THAT(MESSAGE_OF(Error, state.commit(commits, run_id, group, 2)), Contains("open until"));
              const std::string metadata = to_json(meta_of(state.layout(), Dtype::bf16, 2, run_id, group));
              CHECK_THAT(MESSAGE_OF(Error, commits.commit(state.store(), metadata, {}, 2)), Contains("not known"));
            });
    });
    for (const auto& error : errors) CHECK_FALSE(error);
  }
  CHECK(check_run(run) == (kind == OpKind::rename ? 1 : 2));
}

TEST_CASE("Stores that are missing, damaged or another run's are named", "[group]") {
  Begun begun;
  const std::string run = begun.copy();
  const std::string store = run + "/store-g0-r1";
  const std::string id = read_group_file(run)->run_id;
  const auto verified = [&] {
    const std::vector<std::string> lines = verify_run(run, {});
    REQUIRE(lines.size() == 1);
    return lines[0];
  };
  SECTION("missing") {
    fs::remove_all(store);
    CHECK_THAT(verified(), Contains("rank 1 of 3") && Contains(id) && Contains("store-g0-r0") &&
                               Contains("store-g0-r2") && Contains("Looked through in " + run));
    CHECK_THAT(MESSAGE_OF(DamageError, go_on_as(run, {.ranks = 2})), Contains("rank 1 of 3"));
    CHECK_THAT(MESSAGE_OF(DamageError, export_run(run, run + "/out", {}, {})), Contains("rank 1 of 3"));
  }
  SECTION("damaged manifest") {
    std::string bytes = read_whole(store + "/manifest");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(store + "/manifest", std::ios::binary) << bytes;
    CHECK_THAT(verified(), Contains("rank 1 of 3") && Contains(store + "/manifest is damaged"));
  }
  SECTION("another run's") {
    Begun another;
    const std::string foreign = another.copy();
    fs::remove_all(store);
    fs::copy(foreign + "/store-g0-r1", store, fs::copy_options::recursive);
    CHECK_THAT(verified(), Contains("rank 1 of 3") && Contains("run " + read_group_file(foreign)->run_id));
    CHECK_THROWS_AS(go_on_as(run, {.ranks = 3}), DamageError);
    CHECK(fs::exists(store + "/manifest"));  // nobody's leftover
  }
  SECTION("at another commit") {
    const std::string old = begun.copy();
    go_on_as(run, {.ranks = 3}, to_step(2));
    fs::remove_all(store);
    fs::copy(old + "/store-g0-r1", store, fs::copy_options::recursive);
    CHECK_THAT(verified(), Contains("Rank 1") && Contains("commit 2, which is wanted") && Contains(store));
  }
  SECTION("a block") {
    std::string bytes = read_whole(store + "/slots-0000");
    bytes[4096] = static_cast<char>(bytes[4096] ^ 1);
    std::ofstream(store + "/slots-0000", std::ios::binary) << bytes;
    CHECK_THAT(verified(), Contains(store + "/slots-0000") && Contains("of rank 1, step 1"));
  }
  SECTION("group.json is gone, or damaged, or old") {
    const std::string text = read_whole(group_path(run));
    fs::remove(group_path(run));
    CHECK_THAT(verified(), Contains("group.json is missing") && Contains("store-g0-r0"));
    CHECK_THROWS_AS(go_on_as(run, {.ranks = 3}), DamageError);
    std::ofstream(group_path(run)) << text.substr(0, text.size() / 2);
    CHECK_THAT(verified(), Contains("group.json") && Contains("JSON"));
    std::ofstream(group_path(run)) << text;
    CHECK(check_run(run) == 1);
    go_on_as(run, {.ranks = 2});
    std::ofstream(group_path(run)) << text;
    CHECK_THAT(verified(), Contains("older than a store"));
    CHECK(stores_in(run).size() == 2);
  }
  SECTION("in use") {
    StoreOptions options;
    options.folder = store;
    const auto used = Store::open(options, {}, {});
    CHECK_THROWS_AS(open_run(run), Error);
  }
}

TEST_CASE("An export of many ranks is that of one, also by the ranks themselves while they train", "[group]") {
  const TempFolder folder(true);
  const ExportOptions options{.master = true, .optimizer = true};
  const std::string one = folder.path("one"), three = folder.path("three");
  go_on_as(one, {});
  export_run(one, folder.path("expected"), options, {});
  const auto check_same = [&](const std::string& name) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
      INFO(name << ", " << file);
      const std::string bytes = read_whole(folder.path(name) + "/" + file);
      CHECK_FALSE(bytes.empty());
      CHECK((bytes == read_whole(folder.path("expected") + "/" + file)));
    }
  };
  World(3).run_well([&](Peers& peers) {
    go_on({three, ""}, {.ranks = 3, .chunk_bytes = 7 * KiB}, peers,
          [&](RankState& state, WorldCommit&, const std::string&, std::uint64_t) {
            const GroupView view = GroupView::of_ranks(state.store(), peers, "the run");
            export_group(view, peers.rank() == 0 ? folder.path("own") : std::string(), options, {});
          });
  });
  check_same("own");
  export_run(three, folder.path("later"), options, {});
  check_same("later");
}

TEST_CASE("The newest group.json of all machines counts, and two runs are not mixed", "[group]") {
  Begun begun, other;
  const std::string run = begun.copy(), old = begun.copy(), foreign = other.copy();
  go_on_as(run, {.ranks = 3}, to_step(2));
  World(2).run_well([&](Peers& peers) {
    const RunStores stores({peers.rank() == 0 ? old : run, ""}, peers);
    CHECK(stores.current()->commit == 2);
  });
  for (const auto& thrown : World(2).run([&](Peers& peers) {
         const RunStores stores({peers.rank() == 0 ? run : foreign, ""}, peers);
       }))
    CHECK_THAT(MESSAGE_OF(InputError, std::rethrow_exception(thrown)), Contains("different runs"));
}

TEST_CASE("Stores below another folder are found through links and without", "[group]") {
  const TempFolder folder(true);
  const std::string run = folder.path("run"), nvme = folder.path("nvme");
  fs::create_directories(nvme);
  fs::create_directories(run);
  const auto go = [&](const std::string& below, std::uint32_t ranks, const Then& then) {
    World(ranks).run_well([&](Peers& peers) { go_on({run, below}, {.ranks = ranks}, peers, then); });
  };
  go(nvme, 2, {});
  CHECK(fs::is_symlink(run + "/store-g0-r1"));
  CHECK(check_run(run) == 1);
  fs::remove(run + "/store-g0-r1");
  go(nvme, 2, to_step(2));
  CHECK_THAT(verify_run(run, {})[0], Contains("rank 1 of 2"));  // without --nvme
  fs::create_directory_symlink(nvme + "/" + nvme_name(run) + "-g0-r1", run + "/store-g0-r1");
  go("", 3, {});  // beside those that it replaces
  CHECK(check_run(run) == 2);
  CHECK(stores_in(run).size() == 3);
  CHECK(fs::is_symlink(run + "/store-g1-r2"));
  CHECK(std::distance(fs::directory_iterator(nvme), fs::directory_iterator()) == 3);
}
