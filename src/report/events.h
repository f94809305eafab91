// What a record says, line by line (docs/formats.md), as the report uses it. Times are in nanoseconds from the start of
// their step. Names of enumerators are base's; what an older or newer record leaves out keeps its default.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/lane.h"
#include "base/timeline.h"
#include "base/trace_types.h"

namespace transload::report {

inline constexpr int kCollectiveLane = static_cast<int>(Lane::comm);
inline const char* lane_name(int lane) { return name_of(static_cast<Lane>(lane)); }
constexpr int lane_of(Lane lane) { return static_cast<int>(lane); }
constexpr int lane_of(Link link) { return static_cast<int>(link); }

struct AccessLine {
  std::int64_t start_ns = 0, wait_ns = 0;
  std::uint32_t tick = 0, block = 0;
  Tier tier = Tier::host;
  AccessKind kind = AccessKind::read;
  Found found = Found::none;
};

struct SpanLine {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::uint64_t bytes = 0;
  std::int32_t block = -1, index = -1;  ///< −1: none
  std::uint16_t name = 0;               ///< in StepEvents::names; 0: none
  std::uint8_t lane = 0;
  bool ahead = false;
};

struct WaitLine {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int32_t block = -1;
  std::uint8_t lane = 0;
  WaitCause cause = WaitCause::work;
  Tier tier = Tier::host;
  std::int8_t source = -1;  ///< a link's lane; −1: not known
};

struct MemoryLine {
  std::int64_t at_ns = 0;
  std::uint64_t used = 0;
  MemoryBytes bytes{};
  Tier tier = Tier::host;
};

struct LinkUse {
  std::uint64_t bytes = 0, transfers = 0, busy_ns = 0;
};

struct StepLine {
  std::uint64_t step = 0, tokens = 0, wall_ns = 0, compute_ns = 0, update_ns = 0, wait_ns = 0;
  std::uint64_t hits = 0, late = 0, demand = 0, wasted = 0, deviations = 0, resident_bytes = 0, events_lost = 0;
  std::uint64_t clock_error_ns = 0;
  std::array<LinkUse, kLinks> links{};
  std::optional<double> loss;
  bool deviated = false, skipped = false;
  bool planned = false;  ///< of the steady state
  bool device_clock = false;
};

/// The events of one step; of more than there is room for, the first are kept and the rest counted.
struct StepEvents {
  static constexpr std::size_t kMost = std::size_t{1} << 17;  ///< of each kind
  std::vector<AccessLine> accesses;
  std::vector<SpanLine> spans;
  std::vector<WaitLine> waits;
  std::vector<MemoryLine> memory;
  std::vector<std::string> names{""};  ///< of processors' operations
  std::uint64_t step = 0;
  std::uint64_t left_out = 0;

  bool empty() const { return accesses.empty() && spans.empty() && waits.empty() && memory.empty(); }
  void clear();
  std::uint16_t name_id(std::string_view name);  ///< 0 where there are too many
};

struct Block {
  std::string name;
  std::uint64_t bytes = 0;
  MemoryKind use = MemoryKind::other;
  std::int32_t chunk = -1;  ///< −1: of no chunk (kept layer inputs)
};

/// The last header, flat: "budgets.host" is host of budgets.
struct Header {
  struct Field {
    std::string path, text;  ///< a text without its quotes, "true", "false"; empty: null
    double number = 0;
    enum class Kind : std::uint8_t { text, number, truth, null } kind = Kind::null;
  };
  std::vector<Field> fields;  ///< in the order of their paths, without the blocks
  std::vector<Block> blocks;
  bool optimizer = false;

  const Field* find(std::string_view path) const;  ///< null where it is not there
  double number(std::string_view path) const;      ///< 0 where it is not there
  std::uint64_t bytes(std::string_view path) const { return static_cast<std::uint64_t>(number(path)); }
  std::string text(std::string_view path) const;
  bool has_device() const { return bytes("budgets.device") > 0; }
};

/// What the planner makes of a change, or of the step as it is.
struct WhatIf {
  std::string change;            ///< a flag: "host-memory", "device-memory", "recompute", "accumulate"; empty: as it is
  std::string value;             ///< what the flag takes
  std::uint64_t more_bytes = 0;  ///< of memory
  std::uint64_t compute_ns = 0, step_ns = 0, lower_bound_ns = 0;
  std::uint64_t kept_ns = 0;  ///< recompute: storing and loading what is kept instead
  std::array<std::uint64_t, kLinks> link_bytes{};
};

/// The planner's view of a steady-state step with the times that its kernels took.
struct Outlook {
  std::uint64_t step = 0, step_ns = 0, lower_bound_ns = 0, plain_bound_ns = 0;
  std::uint64_t forward_ns = 0, backward_ns = 0, update_ns = 0;
  std::string binds;
  std::vector<WhatIf> what_if;
};

struct Commit {
  std::uint64_t step = 0, written_bytes = 0;
  double seconds = 0;
};

}  // namespace transload::report
