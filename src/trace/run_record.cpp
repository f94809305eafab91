#include "trace/run_record.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
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

/// A process that was killed may have left part of a line.
void drop_torn_line(std::FILE* file) {
  std::array<char, 4096> piece;
  if (std::fseek(file, 0, SEEK_END) != 0) return;
  const long size = std::ftell(file);
  for (long end = size; end > 0;) {
    const long begin = std::max(0L, end - static_cast<long>(piece.size()));
    if (std::fseek(file, begin, SEEK_SET) != 0) return;
    const auto wanted = static_cast<std::size_t>(end - begin);
    if (std::fread(piece.data(), 1, wanted, file) != wanted) return;
    const std::size_t newline = std::string_view(piece.data(), wanted).rfind('\n');
    const bool found = newline != std::string_view::npos;
    end = found ? begin + static_cast<long>(newline) + 1 : begin;
    if (!found && end > 0) continue;
    if (end < size && ::ftruncate(::fileno(file), end) != 0) return;
    break;
  }
  std::fseek(file, 0, SEEK_END);
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
  file_ = std::fopen(path.c_str(), "a+e");
  if (file_ == nullptr)
    throw IoError({.operation = "open",
                   .path = path,
                   .block = {},
                   .error = errno,
                   .advice = "Choose a run folder that this user may write."});
  drop_torn_line(file_);
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
