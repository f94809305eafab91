#include "train/group_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "train/input_file.h"
#include "train/json_keys.h"

namespace transload {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMostBytes = 4 * MiB;  // a store's id takes 20

void demand(std::int64_t result, const char* operation, const std::string& path) {
  if (result >= 0) return;
  throw IoError(
      {operation, path, "", 0, 0, 0, static_cast<int>(-result), "The previous commit is whole. Free space there."});
}

std::uint64_t parse_id(const JsonKeys& keys, const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    keys.refuse(fmt::format("\"stores\" has {}, which is no store's id.", value.dump()));
  return id;
}

GroupFile parse(const JsonKeys& keys) {
  keys.require_format(kFormat);
  GroupFile group;
  group.run_id = keys.text("run_id");
  group.group = keys.count("group");
  group.commit = keys.count("commit");
  group.step = keys.count("step");
  const std::uint64_t ranks = keys.count("ranks");
  if (!keys.at("stores").is_array()) keys.refuse("\"stores\" must be a list.");
  for (const Json& id : keys.at("stores")) group.stores.push_back(parse_id(keys, id));
  if (ranks == 0 || group.stores.size() != ranks)
    keys.refuse(fmt::format("it has {} stores for {} ranks.", group.stores.size(), ranks));
  return group;
}

}  // namespace

std::string to_json(const GroupFile& group) {
  Json stores = Json::array();
  for (const std::uint64_t id : group.stores) stores.push_back(fmt::format("{:016x}", id));
  return nlohmann::ordered_json{{"format", kFormat},      {"run_id", group.run_id}, {"group", group.group},
                                {"ranks", group.ranks()}, {"commit", group.commit}, {"step", group.step},
                                {"stores", stores}}
      .dump();
}

GroupFile parse_group(const std::string& text, const std::string& where) {
  try {
    const Json parsed = parse_json_object(text, where);
    return parse(JsonKeys(parsed, where));
  } catch (const InputError& error) {
    throw DamageError(fmt::format(
        "The list of a run's stores cannot be understood. {} Restore it from a copy: without it the last commit of "
        "all stores is not known.",
        error.what()));
  }
}

std::string group_path(const std::string& run) { return run + "/group.json"; }

std::optional<GroupFile> read_group_file(const std::string& run) {
  const std::string path = group_path(run);
  if (os::kind_of(path) == os::PathKind::missing) return std::nullopt;
  return parse_group(read_text_file(path, kMostBytes), path);
}

WriteResult write_group_file(const std::string& run, const GroupFile& group) {
  const std::string path = group_path(run), temporary = path + ".new", text = to_json(group) + "\n";
  os::File folder;
  try {
    demand(os::File::open(run, O_RDONLY | O_DIRECTORY, &folder), "open", run);
    const os::File file = os::File::open_or_throw(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write_or_throw(text.data(), text.size(), 0);
    demand(file.sync(), "fsync", temporary);
  } catch (const Error& error) {
    os::remove(temporary);
    return {Written::no, error.what()};
  }
  try {
    demand(os::rename(temporary, path), "rename", path);
    demand(folder.sync_all(), "fsync", run);
  } catch (const Error& error) {
    return {Written::unknown, error.what()};
  }
  return {};
}

std::string new_run_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random() & 0xFFFFFFFFu);
  return id;
}

}  // namespace transload
