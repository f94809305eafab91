// group.json: which stores a run's state lies in, and which commit of them is the last one of all.
//
// A world commit is made when this file has been replaced: each of the stores has its commit prepared before, and
// finishes it after. It is written whole or not at all (temporary name, fsync, rename, fsync of the folder).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace transload {

/// The stores of one commit; they were made together for a number of ranks and a chunk size.
struct GroupFile {
  std::string run_id;        ///< random, made at the run's beginning; empty: of a run before there were ids
  std::uint64_t group = 0;   ///< one more at each resharding
  std::uint64_t commit = 0;  ///< sequence of every store's commit. One store alone goes on without this file: the
                             ///< first one of the group; 0: of a run that has no group.json
  std::uint64_t step = 0;    ///< of the model, for whoever looks
  std::vector<std::uint64_t> stores;  ///< their ids, by rank

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(stores.size()); }
  bool operator==(const GroupFile&) const = default;
};

std::string to_json(const GroupFile& group);
/// DamageError says what is wrong with the text of `where`.
GroupFile parse_group(const std::string& text, const std::string& where);

std::string group_path(const std::string& run);
/// Of a run folder; nothing where there is none. DamageError, IoError.
std::optional<GroupFile> read_group_file(const std::string& run);

/// What became of the file: a rename that may or may not outlive a crash is neither done nor not done.
enum class Written : std::uint8_t { yes, no, unknown };
struct WriteResult {
  Written written = Written::yes;
  std::string problem;  ///< where not yes
};
WriteResult write_group_file(const std::string& run, const GroupFile& group);

/// 32 hex digits.
std::string new_run_id();

}  // namespace transload
