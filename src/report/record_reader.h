// Reads a record as a stream and hands on what it says: headers, steps with their events, commits and so on. Memory is
// bounded by one line, one header and the events of one step, whatever the file's length.
//
// A record is read as far as it goes: what is cut, garbled, of another version or unknown is counted, and missing()
// says it in sentences.
// Threading: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/events.h"

namespace transload::report {

/// What the reader calls. References are good during the call.
class RecordVisitor {
 public:
  virtual ~RecordVisitor() = default;
  virtual void header(Header& header) {}                                ///< may be taken from
  virtual void step(const StepLine& step, const StepEvents& events) {}  ///< events: empty where there are none
  virtual void outlook(const Outlook& outlook) {}
  virtual void commit(const Commit& commit) {}
  virtual void evaluation(std::uint64_t step, double loss) {}
  virtual void note(const std::string& text) {}
};

/// What a reading came upon.
struct ReadingFacts {
  std::uint64_t lines = 0, bytes = 0, events = 0, headers = 0, steps = 0;
  std::uint64_t garbled = 0, first_garbled = 0;  ///< lines, and the number of the first
  std::uint64_t unknown = 0;                     ///< lines with events that this version does not know
  std::string unknown_event;                     ///< the first of them
  std::uint64_t too_long = 0, left_out = 0;      ///< lines; events of a step beyond the room for them
  std::uint64_t lost = 0;                        ///< events for which the run had no room
  std::uint64_t newest_format = 0;
  bool torn = false;       ///< the last line has no end
  bool ended = false;      ///< the run said that it ended
  bool open_step = false;  ///< events of a step whose own line is not there
  bool optimizer = false;  ///< a drop-in optimizer's record, which has no end
  std::string version;     ///< that wrote the last header
  std::vector<std::string> missing() const;
};

/// IoError where the file cannot be read.
ReadingFacts read_record(const std::string& path, RecordVisitor& visitor);

}  // namespace transload::report
