// The stores of a run's ranks: where they lie, which of them are current, how they commit together.
//
// Each rank has a store of its own shard. group.json (group_file.h) names the current stores by id and the commit of
// theirs that is the run's last one; a run of one rank that never had others has no group.json and its store says
// everything itself. A group of stores is made for a number of ranks and a chunk size; going on with another number or
// size makes the next group and fills it (reshard.h). What is neither the current group's nor anybody else's is a
// leftover: of a group that was half made, or of one that a later group has replaced.
//
// Names: `store` for group 0 of one rank, else `store-g<group>-r<rank>`, in the run folder, or links there to folders
// below --nvme. Which store is whose, manifests say, not names: id, run id, group, rank.
//
// How a trainer uses it (every line on every rank, in this order; `peers` of one rank: OnePeer):
//
//   RunStores stores({run, nvme}, peers);                // what is there; all ranks have the same answer
//   stores.reclaim();                                    // leftovers
//
//   Begin a run (!stores.current()):
//     run_id = stores.agree_on_run_id();
//     store = Store::create({stores.make_place(rank, ranks)}, …)
//     engine; write_initial_weights, declare_zero_moments
//     WorldCommit commits(run, run_id, stores.next_group(), peers);
//     engine.commit(metadata, commits.of(*store, step))  // metadata says run_id and group
//
//   Go on with as many ranks and the same chunk size (stores.fits(layout)):
//     store = Store::open({stores.place(rank), …, .wanted = stores.wanted(rank)}, …)
//     engine.adopt(stored_blocks(store->committed(), …))
//     WorldCommit commits(run, run_id, stores.current()->group, peers);
//
//   Go on otherwise:
//     OpenGroup old = open_group(stores);                // DamageError: a store that nobody sees
//     store = Store::create({stores.make_place(rank, ranks)}, …); engine
//     reshard(old.view, layout, engine, stream, …);
//     WorldCommit commits(run, run_id, stores.next_group(), peers);
//     engine.commit(metadata, commits.of(*store, step)); // from here on the new group is the run's state
//     old.close(); stores.remove_current();
//
// One rank in group 0 has no group.json: it uses Store::commit as ever, which is what commits.of gives it, and
// place_of_store's folder. What a resumed run must know of the last commit before it has a store, stores.meta() says.
//
// Threading: one thread a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"
#include "train/checkpoint.h"
#include "train/group_file.h"
#include "train/group_reader.h"
#include "train/peers.h"
#include "train/store_places.h"

namespace transload {

class RunStores {
 public:
  /// Looks at the run folder's group.json and at all stores of the run that this process sees; the newest group.json of
  /// all ranks counts. Changes nothing. DamageError: group.json is damaged, missing or older than the stores;
  /// InputError: ranks that see different runs.
  RunStores(StorePlaces places, Peers& peers);

  /// The run's state; nothing where nothing was committed yet.
  const std::optional<GroupFile>& current() const { return current_; }
  std::uint64_t next_group() const { return current_ ? current_->group + 1 : 0; }
  /// The current group's run id, or (of a new run, or one from before there were ids) a new one that rank 0 makes.
  std::string agree_on_run_id() const;

  /// The folder of a current store; empty where this process does not see it.
  std::string place(std::uint32_t rank) const;
  /// For StoreOptions::wanted of that store.
  std::optional<std::uint64_t> wanted(std::uint32_t rank) const;
  /// Who reads it for all (GroupView::readers).
  std::int64_t reader(std::uint32_t rank) const;
  /// A line for each current store that no rank sees, with what was looked through.
  std::vector<std::string> missing() const;
  /// The last commit's metadata, read by a rank that sees store 0. DamageError.
  CheckpointMeta meta() const;
  /// Whether the current stores can be gone on with: made for this layout's ranks and chunk size, and each rank sees
  /// its own.
  bool fits(const Layout& layout) const;

  Peers& peers() const { return peers_; }
  const StorePlaces& places() const { return places_; }

  /// The folder for a store of the next group: its link is made, the store is not.
  std::string make_place(std::uint32_t rank, std::uint32_t ranks) const;
  /// Removes leftovers. Those of other runs stay, and so do stores in use.
  void reclaim();
  /// Removes the stores of the group that was current at construction, once another one is.
  void remove_current();

 private:
  void agree_on_group();
  void agree_on_places();
  std::string complaint_of_newer() const;
  const FoundStore* find(std::uint32_t rank) const;
  bool is_leftover(const FoundStore& store) const;

  StorePlaces places_;
  Peers& peers_;
  std::vector<FoundStore> found_;
  std::optional<GroupFile> current_;
  std::vector<std::vector<bool>> seen_;  // by rank of the group, by peer
};

/// The current stores that this process sees, opened for reading at the run's last commit.
struct OpenGroup {
  std::vector<std::unique_ptr<Store>> stores;  ///< by rank; null where not seen
  GroupView view;

  void close() {
    view.stores.clear();
    stores.clear();
  }
};
/// DamageError: a store is missing, lacks the wanted commit, or is another one than its manifest says; all of them are
/// named. InputError: in use.
OpenGroup open_group(const RunStores& stores);
/// All stores of a run folder, by a process that does not train. InputError: none, or in use.
OpenGroup open_run(const std::string& run);

/// Commits of the stores of one group, together.
class WorldCommit {
 public:
  WorldCommit(std::string run, std::string run_id, std::uint64_t group, Peers& peers)
      : run_(std::move(run)), run_id_(std::move(run_id)), group_(group), peers_(peers) {}

  /// All ranks call it together. On an exception that every rank gets (some rank could not prepare, group.json could
  /// not be written) the previous commit is current. Where it is not known which commit is current, because a rank was
  /// lost or the drive's answer is open, the prepared one stays for the next start to decide, and nothing more is
  /// committed.
  void commit(Store& store, const std::string& metadata, std::span<const StoredBlock> blocks, std::uint64_t step);
  /// For Engine::commit.
  std::function<void(const std::string&, std::span<const StoredBlock>)> of(Store& store, std::uint64_t step) {
    return [this, &store, step](const std::string& metadata, std::span<const StoredBlock> blocks) {
      commit(store, metadata, blocks, step);
    };
  }

 private:
  GroupFile prepare_all(Store& store, const std::string& metadata, std::span<const StoredBlock> blocks,
                        std::uint64_t step);
  void decide(Store& store, const GroupFile& group);
  void copy_here(const GroupFile& group) const;

  const std::string run_, run_id_;
  const std::uint64_t group_;
  Peers& peers_;
  bool undecided_ = false;
};

}  // namespace transload
