#include "train/store_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "train/committed_state.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// "rank 2: …" for the first of the ranks' problems; empty where there is none.
std::string first_problem(const std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    return problems.size() == 1 ? problems[rank] : fmt::format("Rank {}: {}", rank, problems[rank]);
  }
  return {};
}

/// The state of a run that has no group.json: one rank's store.
std::optional<GroupFile> implied_group(const std::vector<FoundStore>& found) {
  for (const FoundStore& store : found)
    if (store.named_group == 0 && store.last && store.last->group == 0 && store.last->ranks == 1)
      return GroupFile{store.last->run_id, 0, 0, store.last->step, {store.last->store_id}};
  return std::nullopt;
}

/// Of a run without a group.json: a store whose last commit cannot be read might be all there is of it.
void check_manifests(const std::vector<FoundStore>& found) {
  for (const FoundStore& store : found)
    if (!store.problem.empty()) throw DamageError(store.problem);
}

/// What this process sees of the run's state.
std::optional<GroupFile> own_group(const StorePlaces& places, const std::vector<FoundStore>& found) {
  std::optional<GroupFile> group = read_group_file(places.run);
  if (!group) group = implied_group(found);
  if (!group) check_manifests(found);
  return group;
}

/// A store that group.json names for another rank than it was made for. Shards of two ranks have the same sizes: only
/// what a store says of itself tells them apart.
std::string complaint_of_ranks(const GroupFile& group, const std::vector<FoundStore>& found, const std::string& run) {
  for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
    for (const FoundStore& store : found) {
      if (!store.is(group.stores[rank])) continue;
      const StoreMark& mark = store.last ? *store.last : *store.prepared;
      if (mark.rank == rank && mark.ranks == group.ranks()) continue;
      return fmt::format(
          "{} has {:016x} as the store of rank {} of {}, which contradicts the store: {}. Restore {} from "
          "a copy.",
          group_path(run), group.stores[rank], rank, group.ranks(), store.text(), group_path(run));
    }
  }
  return {};
}

}  // namespace

RunStores::RunStores(StorePlaces places, Peers& peers)
    : places_(std::move(places)), peers_(peers), found_(find_stores(places_)) {
  agree_on_group();
  agree_on_places();
}

void RunStores::agree_on_group() {
  Json mine = {{"group", nullptr}, {"problem", ""}};
  try {
    if (const auto group = own_group(places_, found_)) mine["group"] = to_json(*group);
  } catch (const Error& error) {
    mine["problem"] = error.what();
  }
  const std::vector<std::string> texts = peers_.exchange(mine.dump());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json text = Json::parse(texts[rank]);
    const std::string where = fmt::format("rank {}", rank);
    if (text["problem"] != "") throw DamageError(text["problem"].get<std::string>());
    if (text["group"].is_null()) continue;
    const GroupFile group = parse_group(text["group"].get<std::string>(), where);
    if (current_ && !current_->run_id.empty() && !group.run_id.empty() && current_->run_id != group.run_id)
      throw InputError(
          fmt::format("The ranks see different runs: rank {} sees run {}, another one run {}. Give all "
                      "ranks the run folder of one run.",
                      rank, group.run_id, current_->run_id));
    const auto age = [](const GroupFile& g) { return std::pair(g.group, g.commit); };
    if (!current_ || age(group) > age(*current_)) current_ = group;
  }
}

std::string RunStores::complaint_of_newer() const {
  for (const FoundStore& store : found_) {
    if (!store.last) continue;
    const StoreMark& mark = *store.last;
    if (!current_)
      return fmt::format("{} is missing, and the run has stores of ranks: {}. Restore it from a copy.",
                         group_path(places_.run), store.text());
    if (mark.run_id == current_->run_id && mark.group > current_->group)
      return fmt::format("{} says group {} and is older than a store of the run: {}. Restore the newer one.",
                         group_path(places_.run), current_->group, store.text());
  }
  return {};
}

void RunStores::agree_on_places() {
  const std::string newer = complaint_of_newer();
  Json mine = {{"seen", ""},
               {"problem", newer.empty() && current_ ? complaint_of_ranks(*current_, found_, places_.run) : newer}};
  std::string bits;
  for (std::uint32_t r = 0; current_ && r < current_->ranks(); ++r) bits += find(r) != nullptr ? '1' : '0';
  mine["seen"] = bits;
  const std::vector<std::string> texts = peers_.exchange(mine.dump());
  seen_.assign(bits.size(), std::vector<bool>(texts.size()));
  for (std::size_t peer = 0; peer < texts.size(); ++peer) {
    const Json text = Json::parse(texts[peer]);
    if (text["problem"] != "") throw DamageError(text["problem"].get<std::string>());
    const std::string seen = text["seen"];
    for (std::size_t r = 0; r < seen.size() && r < seen_.size(); ++r) seen_[r][peer] = seen[r] == '1';
  }
}

std::string RunStores::agree_on_run_id() const {
  if (current_ && !current_->run_id.empty()) return current_->run_id;
  return peers_.exchange(peers_.rank() == 0 ? new_run_id() : std::string()).front();
}

const FoundStore* RunStores::find(std::uint32_t rank) const {
  for (const FoundStore& store : found_)
    if (store.is(current_->stores[rank])) return &store;
  return nullptr;
}

std::string RunStores::place(std::uint32_t rank) const {
  const FoundStore* store = find(rank);
  return store == nullptr ? std::string() : store->folder;
}

std::optional<std::uint64_t> RunStores::wanted(std::uint32_t rank) const {
  // One store's own manifest says what its last commit is, once it has one.
  const FoundStore* store = find(rank);
  if (current_->ranks() == 1 && store != nullptr && store->last) return std::nullopt;
  return current_->commit;
}

std::int64_t RunStores::reader(std::uint32_t rank) const {
  const std::vector<bool>& seen = seen_[rank];
  const auto missed = std::find(seen.begin(), seen.end(), false);
  const auto first = std::find(seen.begin(), seen.end(), true);
  return missed == seen.end() || first == seen.end() ? GroupView::kEveryone : first - seen.begin();
}

std::vector<std::string> RunStores::missing() const {
  std::vector<std::string> lines;
  std::string looked;
  for (const FoundStore& store : found_) looked += (looked.empty() ? "" : "; ") + store.text();
  for (std::uint32_t r = 0; current_ && r < current_->ranks(); ++r) {
    if (std::find(seen_[r].begin(), seen_[r].end(), true) != seen_[r].end()) continue;
    lines.push_back(
        fmt::format("The store of rank {} of {}, {:016x} of group {} of run {}, is missing: no rank sees it. "
                    "Looked through in {}{}{}: {}. Make its folder reachable there.",
                    r, current_->ranks(), current_->stores[r], current_->group, current_->run_id, places_.run,
                    places_.nvme.empty() ? "" : " and ", places_.nvme, looked.empty() ? "no store at all" : looked));
  }
  return lines;
}

CheckpointMeta RunStores::meta() const {
  std::string text, problem;
  const std::int64_t from = reader(0);
  if (!place(0).empty() && (from == GroupView::kEveryone || from == static_cast<std::int64_t>(peers_.rank()))) {
    try {
      text = Store::read_manifest(place(0), wanted(0)).metadata;
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  if (from != GroupView::kEveryone) {
    const auto sender = static_cast<std::uint32_t>(from);
    problem = peers_.exchange(problem)[sender];
    std::uint64_t bytes = text.size();
    peers_.broadcast(std::as_writable_bytes(std::span(&bytes, 1)), sender);
    text.resize(bytes);
    peers_.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), sender);
  }
  if (problem.empty() && text.empty()) problem = missing().front();  // rank 0's
  if (!problem.empty()) throw DamageError(problem);
  return parse_meta(text, places_.run);
}

bool RunStores::fits(const Layout& layout) const {
  if (!current_ || current_->ranks() != layout.shards().count) return false;
  for (std::uint32_t r = 0; r < current_->ranks(); ++r)
    if (!seen_[r][r]) return false;
  return layout_of(meta(), places_.run).chunk_bytes() == layout.chunk_bytes();
}

std::string RunStores::make_place(std::uint32_t rank, std::uint32_t ranks) const {
  StorePlaces places = places_;
  const FoundStore* beside = !current_ ? nullptr : find(std::min(rank, current_->ranks() - 1));
  if (places.nvme.empty() && beside != nullptr && !beside->link.empty())
    places.nvme = fs::path(beside->folder).parent_path().string();
  const std::string folder = place_of(places, next_group(), rank, ranks);
  link_place(places, store_name(next_group(), rank, ranks), folder);
  return folder;
}

bool RunStores::is_leftover(const FoundStore& store) const {
  if (!store.problem.empty()) return false;
  if (!current_) return !store.last;
  for (const std::uint64_t id : current_->stores)
    if (store.is(id)) return false;
  const auto ours = [&](const StoreMark& mark) { return mark.run_id.empty() || mark.run_id == current_->run_id; };
  if (store.last) return ours(*store.last) && store.last->group < current_->group;
  return store.named_group != current_->group && (!store.prepared || ours(*store.prepared));
}

namespace {

/// The store and its link. One that is in use, or that another rank was quicker with, stays its user's matter.
void remove_store(const FoundStore& store) {
  try {
    Store::remove(store.folder);
  } catch (const InputError&) {
    return;
  }
  if (!store.link.empty() && os::kind_of(store.folder) == os::PathKind::missing) os::remove(store.link);
}

template <class Which>
std::string remove_those(std::vector<FoundStore>& found, const Which& which) {
  std::string problem;
  std::erase_if(found, [&](const FoundStore& store) {
    if (!which(store)) return false;
    try {
      remove_store(store);
    } catch (const IoError& error) {
      if (error.details().error != ENOENT) problem = error.what();
    }
    return true;
  });
  return problem;
}

/// Every rank throws what one of them met.
void agree_or_throw(Peers& peers, const std::string& problem) {
  const std::string first = first_problem(peers.exchange(problem));
  if (!first.empty()) throw Error(first);
}

}  // namespace

void RunStores::reclaim() {
  agree_or_throw(peers_, remove_those(found_, [&](const FoundStore& store) { return is_leftover(store); }));
}

void RunStores::remove_current() {
  peers_.exchange("");  // nobody reads them any more, and group.json is in place everywhere
  const std::optional<GroupFile> now = read_group_file(places_.run);
  TRANSLOAD_CHECK(now && current_ && now->group > current_->group, "the stores of group {} are the run's state still",
                  current_ ? current_->group : 0);
  agree_or_throw(peers_, remove_those(found_, [&](const FoundStore& store) {
                   return std::any_of(current_->stores.begin(), current_->stores.end(),
                                      [&](std::uint64_t id) { return store.is(id); });
                 }));
}

OpenGroup open_group(const RunStores& stores) {
  OpenGroup open;
  std::string problems;
  std::exception_ptr first;
  const auto note = [&](const std::string& line) { problems += (problems.empty() ? "" : "\n") + line; };
  for (const std::string& line : stores.missing()) note(line);
  for (std::uint32_t r = 0; r < stores.current()->ranks(); ++r) {
    open.view.readers.push_back(stores.reader(r));
    open.stores.emplace_back();
    StoreOptions options;
    options.folder = stores.place(r);
    if (options.folder.empty()) continue;
    options.wanted = stores.wanted(r);
    try {
      open.stores.back() = Store::open_read_only(options);
    } catch (const Error& error) {
      if (!first) first = std::current_exception();
      note(stores.current()->ranks() == 1 ? error.what() : fmt::format("Rank {}: {}", r, error.what()));
    }
  }
  const std::vector<std::string> all = stores.peers().exchange(problems);
  if (first && stores.current()->ranks() == 1) std::rethrow_exception(first);
  for (const std::string& problem : all)
    if (!problem.empty()) throw DamageError(problem);
  for (const auto& store : open.stores) open.view.stores.push_back(store.get());
  open.view.peers = &stores.peers();
  open.view.meta = stores.meta();
  open.view.where = stores.places().run;
  return open;
}

GroupFile WorldCommit::prepare_all(Store& store, const std::string& metadata, std::span<const StoredBlock> blocks,
                                   std::uint64_t step) {
  std::exception_ptr failed;
  Json mine = {{"problem", ""}, {"store", store.committed().store_id}, {"commit", store.committed().sequence + 1}};
  try {
    store.prepare(metadata, blocks);
  } catch (const Error& error) {
    failed = std::current_exception();
    mine["problem"] = error.what();
  }
  undecided_ = true;  // where the exchange fails, the others may go on
  const std::vector<std::string> texts = peers_.exchange(mine.dump());
  GroupFile group{run_id_, group_, mine["commit"].get<std::uint64_t>(), step, {}};
  std::vector<std::string> problems;
  for (const std::string& text : texts) {
    const Json other = Json::parse(text);
    group.stores.push_back(other["store"].get<std::uint64_t>());
    problems.push_back(other["problem"].get<std::string>());
    TRANSLOAD_CHECK(other["commit"] == mine["commit"], "commit {} of rank {}, commit {} of rank {}",
                    other["commit"].dump(), problems.size() - 1, mine["commit"].dump(), peers_.rank());
  }
  const std::string problem = first_problem(problems);
  if (problem.empty()) return group;
  undecided_ = false;
  if (failed) std::rethrow_exception(failed);
  store.drop();
  throw Error(fmt::format("The commit of all ranks failed and the last one is whole. {}", problem));
}

void WorldCommit::decide(Store& store, const GroupFile& group) {
  Json mine = {{"written", static_cast<int>(Written::yes)}, {"problem", ""}};
  if (peers_.rank() == 0) {
    const WriteResult result = write_group_file(run_, group);
    mine = {{"written", static_cast<int>(result.written)}, {"problem", result.problem}};
  }
  const Json answer = Json::parse(peers_.exchange(mine.dump()).front());
  const auto written = static_cast<Written>(answer["written"].get<int>());
  if (written == Written::unknown)
    throw Error(
        fmt::format("Whether the last commit of all ranks was made is open until the run is resumed; each of the "
                    "two is whole. {}",
                    answer["problem"].get<std::string>()));
  undecided_ = false;
  if (written == Written::yes) return;
  store.drop();
  throw Error(fmt::format("The commit of all ranks failed and the last one is whole. {}",
                          answer["problem"].get<std::string>()));
}

/// A machine with a run folder of its own: the newest group.json counts, so an older one there does no harm.
void WorldCommit::copy_here(const GroupFile& group) const {
  if (peers_.rank() == 0 || peers_.local_rank() != 0) return;
  try {
    if (read_group_file(run_) == group) return;
  } catch (const DamageError&) {
    // Replaced below.
  }
  const WriteResult result = write_group_file(run_, group);
  if (result.written != Written::yes) throw Error(result.problem);
}

void WorldCommit::commit(Store& store, const std::string& metadata, std::span<const StoredBlock> blocks,
                         std::uint64_t step) {
  if (undecided_) throw Error("Whether the last commit of all ranks was made is not known; nothing more is committed.");
  const bool alone = peers_.count() == 1 && (group_ == 0 || store.committed().sequence > 0);
  if (alone) return store.commit(metadata, blocks);
  const GroupFile group = prepare_all(store, metadata, blocks, step);
  decide(store, group);
  store.finish();
  copy_here(group);
}

}  // namespace transload
