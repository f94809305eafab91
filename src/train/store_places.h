// Where a run's stores lie, or may lie: names in the run folder, links to folders below --nvme, and what is found
// there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace transload {

/// Where to look and where to make.
struct StorePlaces {
  std::string run;   ///< run folder
  std::string nvme;  ///< folder of --nvme; empty: the run folder
};

/// What a commit of a store says of it.
struct StoreMark {
  std::uint64_t store_id = 0, sequence = 0;
  std::string run_id;
  std::uint64_t group = 0, step = 0;
  std::uint32_t rank = 0, ranks = 1;
};

struct FoundStore {
  std::string folder;  ///< without links
  std::string link;    ///< in the run folder, where it leads to the folder; else empty
  std::uint64_t named_group = 0;
  std::optional<StoreMark> last;      ///< commit
  std::optional<StoreMark> prepared;  ///< where there is no last one
  std::string problem;                ///< why nothing is known of them

  /// A commit of a store with this id is here.
  bool is(std::uint64_t store_id) const;
  std::string text() const;  ///< for messages
};

/// `store`, or `store-g<group>-r<rank>`.
std::string store_name(std::uint64_t group, std::uint32_t rank, std::uint32_t ranks);
/// The name below --nvme that goes with `store`; that of another store has the same ending as its name.
std::string nvme_name(const std::string& run);

/// The folder for a store that is to be made.
std::string place_of(const StorePlaces& places, std::uint64_t group, std::uint32_t rank, std::uint32_t ranks);
/// Makes the name in the run folder a link to `folder` where that is not the name itself. IoError.
void link_place(const StorePlaces& places, const std::string& name, const std::string& folder);
/// All folders with the names of this run's stores, by path.
std::vector<FoundStore> find_stores(const StorePlaces& places);

}  // namespace transload
