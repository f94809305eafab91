#include "train/store_places.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/os.h"
#include "offload/store.h"
#include "train/checkpoint.h"
#include "train/committed_state.h"

namespace transload {
namespace {

namespace fs = std::filesystem;

/// "-g<group>-r<rank>" or nothing at all, which is group 0.
bool parse_ending(std::string_view text, std::uint64_t* group) {
  *group = 0;
  if (text.empty()) return true;
  const std::size_t rank_at = text.find("-r");
  if (text.substr(0, 2) != "-g" || rank_at == std::string_view::npos) return false;
  const auto whole_number = [](std::string_view digits, std::uint64_t* number) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *number);
    return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  };
  std::uint64_t rank = 0;
  return whole_number(text.substr(2, rank_at - 2), group) && whole_number(text.substr(rank_at + 2), &rank);
}

StoreMark mark_of(const Manifest& manifest, const std::string& where) {
  const CheckpointMeta meta = parse_meta(manifest.metadata, where);
  const Shards shards = layout_of(meta, where).shards();
  return {manifest.store_id, manifest.sequence, meta.run_id, meta.group, meta.step, shards.rank, shards.count};
}

void look_at(FoundStore& store) {
  try {
    const os::PathKind kind = os::kind_of(store.folder + "/manifest");
    if (kind == os::PathKind::missing) {
      if (const auto manifest = Store::prepared(store.folder)) store.prepared = mark_of(*manifest, store.folder);
    } else {
      store.last = mark_of(Store::read_manifest(store.folder), store.folder);
    }
  } catch (const Error& error) {
    store.problem = error.what();
  }
}

/// Adds what `folder` has under names that begin with `prefix`.
void find_in(const std::string& folder, const std::string& prefix, bool links, std::vector<FoundStore>& found) {
  std::vector<std::string> names;
  if (folder.empty()) return;
  const std::int64_t listed = os::list_folder(folder, &names);
  if (listed == -ENOENT) return;
  if (listed < 0)
    throw IoError({"readdir", folder, "", 0, 0, 0, static_cast<int>(-listed), "Make sure that it can be read."});
  for (const std::string& name : names) {
    FoundStore store;
    if (!name.starts_with(prefix) || !parse_ending(std::string_view(name).substr(prefix.size()), &store.named_group))
      continue;
    std::error_code error;
    const fs::path path = fs::path(folder) / name;
    if (links && fs::is_symlink(path, error)) store.link = path.string();
    store.folder = fs::weakly_canonical(path, error).string();
    if (error || !fs::is_directory(store.folder, error)) continue;
    bool known = false;
    for (const FoundStore& other : found) known = known || other.folder == store.folder;
    if (known) continue;
    look_at(store);
    found.push_back(std::move(store));
  }
}

}  // namespace

bool FoundStore::is(std::uint64_t store_id) const {
  return (last && last->store_id == store_id) || (prepared && prepared->store_id == store_id);
}

std::string FoundStore::text() const {
  if (!problem.empty()) return fmt::format("{} ({})", folder, problem);
  if (!last && !prepared) return fmt::format("{} (nothing was committed there)", folder);
  const StoreMark& mark = last ? *last : *prepared;
  return fmt::format("{} (rank {} of {}, group {} of {}, commit {}{})", folder, mark.rank, mark.ranks, mark.group,
                     mark.run_id.empty() ? std::string("a run without an id") : "run " + mark.run_id, mark.sequence,
                     last ? "" : " prepared");
}

std::string store_name(std::uint64_t group, std::uint32_t rank, std::uint32_t ranks) {
  return group == 0 && ranks == 1 ? std::string("store") : fmt::format("store-g{}-r{}", group, rank);
}

std::string nvme_name(const std::string& run) {
  std::error_code error;
  const std::string path = fs::weakly_canonical(run, error).lexically_normal().string();
  return fmt::format("transload-{}-{:016x}", fs::path(path).filename().string(),
                     static_cast<std::uint64_t>(XXH3_64bits(path.data(), path.size())));
}

std::string place_of(const StorePlaces& places, std::uint64_t group, std::uint32_t rank, std::uint32_t ranks) {
  const std::string name = store_name(group, rank, ranks);
  if (places.nvme.empty()) return (fs::path(places.run) / name).string();
  const std::string ending = name.substr(std::string_view("store").size());
  return (fs::weakly_canonical(places.nvme) / (nvme_name(places.run) + ending)).string();
}

void link_place(const StorePlaces& places, const std::string& name, const std::string& folder) {
  const fs::path own = fs::path(places.run) / name;
  if (own.string() == folder) return;
  std::error_code error;
  if (fs::is_symlink(own, error)) os::remove(own.string());  // of a store that is gone
  fs::create_directory_symlink(folder, own, error);
  if (error)
    throw IoError({"link", own.string(), "", 0, 0, 0, error.value(),
                   fmt::format("Leave --nvme out, or put the run folder on a file system with links (it should lead to "
                               "{}).",
                               folder)});
}

std::vector<FoundStore> find_stores(const StorePlaces& places) {
  std::vector<FoundStore> found;
  find_in(places.run, "store", true, found);
  find_in(places.nvme, nvme_name(places.run), false, found);
  return found;
}

}  // namespace transload
