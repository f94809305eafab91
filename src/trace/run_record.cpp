#include "trace/run_record.h"

#include <fmt/format.h>

#include <cerrno>
#include <iterator>

#include "base/error.h"

namespace transload {

namespace {

const char* name_of(AccessKind kind) {
  switch (kind) {
    case AccessKind::read:
      return "read";
    case AccessKind::write:
      return "write";
    case AccessKind::update:
      return "update";
    case AccessKind::consume:
      return "consume";
  }
  return "?";
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

RunRecord::RunRecord(const std::string& path, RecordLimits limits) : path_(path), limits_(limits) {
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr)
    throw IoError({.operation = "open",
                   .path = path,
                   .block = {},
                   .error = errno,
                   .advice = "Choose a run folder that this user may write."});
}

RunRecord::~RunRecord() { std::fclose(file_); }

void RunRecord::put(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) == text.size()) return;
  throw IoError({.operation = "write",
                 .path = path_,
                 .block = {},
                 .wanted = text.size(),
                 .error = errno,
                 .advice = "Make room on the drive of the run folder."});
}

void RunRecord::flush() {
  if (std::fflush(file_) == 0) return;
  throw IoError({.operation = "write",
                 .path = path_,
                 .block = {},
                 .error = errno,
                 .advice = "Make room on the drive of the run folder."});
}

void RunRecord::write(std::string_view kind, std::string_view fields) {
  put(fmt::format("{{\"event\":{}{}{}}}\n", json_string(kind), fields.empty() ? "" : ",", fields));
}

bool RunRecord::wants_events(std::uint64_t step, bool deviated) {
  if (events_written_ >= limits_.event_bytes) return false;
  return steps_ <= limits_.first_steps || deviated || (limits_.every > 0 && step % limits_.every == 0);
}

void RunRecord::write_step(std::uint64_t step, bool deviated, std::string_view fields,
                           const std::vector<AccessEvent>& accesses) {
  ++steps_;
  if (wants_events(step, deviated)) {
    for (std::size_t tick = 0; tick < accesses.size() && events_written_ < limits_.event_bytes; ++tick) {
      const AccessEvent& a = accesses[tick];
      line_.clear();
      fmt::format_to(std::back_inserter(line_),
                     "{{\"event\":\"access\",\"step\":{},\"tick\":{},\"block\":{},\"tier\":\"{}\",\"kind\":\"{}\","
                     "\"start_ns\":{},\"wait_ns\":{},\"ready\":{}}}\n",
                     step, tick, a.block.value, transload::name_of(a.tier), name_of(a.kind), a.start_ns, a.wait_ns,
                     a.ready);
      put(line_);
      events_written_ += line_.size();
    }
  }
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"event\":\"step\",\"step\":{},\"deviated\":{}{}{}}}\n", step, deviated,
                 fields.empty() ? "" : ",", fields);
  put(line_);
}

}  // namespace transload
