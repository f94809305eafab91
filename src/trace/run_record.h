// The run record (record.jsonl, docs/formats.md): one header, then events, one JSON object a line. The report reads
// nothing else.
//
// Bounded from the first day: the accesses and the timeline of a step are written for the first steps, for every n-th,
// and for steps that deviated from the trace, as long as the record's room for them lasts; every step has one summary
// line. A resumed run appends, with a header of its own.
//
// Threading: one thread. A write error is kept and thrown by the next call: a record that stops without a word would
// be taken for the whole run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/timeline.h"
#include "base/trace_types.h"

namespace transload {

/// One access as it went: when, how long the issuing thread waited for it, whether the bytes were there.
struct AccessEvent {
  std::uint64_t start_ns = 0;  ///< from the start of the step
  std::uint64_t wait_ns = 0;
  BlockId block;
  Tier tier = Tier::host;
  AccessKind kind = AccessKind::read;
  Found found = Found::none;
  bool ready = true;
};

struct RecordLimits {
  std::uint64_t first_steps = 3;           ///< with all events
  std::uint64_t every = 100;               ///< and each step that this divides
  std::uint64_t event_bytes = 64'000'000;  ///< of events in all; summary lines go on
};

class RunRecord {
 public:
  RunRecord(const std::string& path, RecordLimits limits);
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  /// Any event but a step: `kind` becomes its "event"; `fields` is a JSON object's inside, without braces.
  void write(std::string_view kind, std::string_view fields);
  /// Whether the events of `step`, the next one, will be written also where it does not deviate.
  bool expects_events(std::uint64_t step) const;
  /// A step's summary line, and its accesses and timeline (may be null) where the limits ask for them. `step` counts
  /// from 1.
  void write_step(std::uint64_t step, bool deviated, std::string_view fields, const std::vector<AccessEvent>& accesses,
                  const Timeline* timeline = nullptr);
  void flush();

 private:
  void put(std::string_view text);
  void put_line();
  bool has_room() const { return events_written_ < limits_.event_bytes; }
  void write_accesses(std::uint64_t step, const std::vector<AccessEvent>& accesses);
  void write_spans(std::uint64_t step, const Timeline& timeline);
  void write_waits(std::uint64_t step, const Timeline& timeline);
  void write_memory(std::uint64_t step, const Timeline& timeline);
  std::string path_;
  RecordLimits limits_;
  std::FILE* file_ = nullptr;
  std::uint64_t steps_ = 0, events_written_ = 0;
  std::string line_;  // reused
};

/// A JSON string with its quotes.
std::string json_string(std::string_view text);

}  // namespace transload
