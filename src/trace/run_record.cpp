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

const char* name_of(Found found) {
  constexpr const char* names[] = {"none", "hit", "late", "demand"};
  return names[static_cast<int>(found)];
}

bool concerns_tier(WaitCause cause) {
  return cause == WaitCause::room || cause == WaitCause::use || cause == WaitCause::content;
}

/// From the start of the step; negative for what began in the one before.
std::int64_t from(const Timeline& timeline, std::uint64_t ns) {
  return static_cast<std::int64_t>(ns) - static_cast<std::int64_t>(timeline.begin_ns());
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

bool RunRecord::expects_events(std::uint64_t step) const {
  return has_room() && (steps_ < limits_.first_steps || (limits_.every > 0 && step % limits_.every == 0));
}

void RunRecord::put_line() {
  put(line_);
  events_written_ += line_.size();
}

void RunRecord::write_accesses(std::uint64_t step, const std::vector<AccessEvent>& accesses) {
  for (std::size_t tick = 0; tick < accesses.size() && has_room(); ++tick) {
    const AccessEvent& a = accesses[tick];
    line_.clear();
    fmt::format_to(std::back_inserter(line_),
                   "{{\"event\":\"access\",\"step\":{},\"tick\":{},\"block\":{},\"tier\":\"{}\",\"kind\":\"{}\","
                   "\"start_ns\":{},\"wait_ns\":{},\"ready\":{},\"found\":\"{}\"}}\n",
                   step, tick, a.block.value, transload::name_of(a.tier), name_of(a.kind), a.start_ns, a.wait_ns,
                   a.ready, name_of(a.found));
    put_line();
  }
}

void RunRecord::write_spans(std::uint64_t step, const Timeline& timeline) {
  for (const Span& span : timeline.spans()) {
    if (!has_room()) return;
    line_.clear();
    const auto out = std::back_inserter(line_);
    fmt::format_to(out, "{{\"event\":\"span\",\"step\":{},\"lane\":\"{}\",\"begin_ns\":{},\"end_ns\":{}", step,
                   transload::name_of(span.lane), from(timeline, span.begin_ns), from(timeline, span.end_ns));
    if (span.name != nullptr)
      fmt::format_to(out, ",\"name\":\"{}\",\"tasks\":{}", span.name, span.tasks);
    else
      fmt::format_to(out, ",\"block\":{},\"bytes\":{},\"ahead\":{}", span.block.value, span.bytes, span.ahead);
    if (span.index >= 0) fmt::format_to(out, ",\"index\":{}", span.index);
    fmt::format_to(out, "}}\n");
    put_line();
  }
}

void RunRecord::write_waits(std::uint64_t step, const Timeline& timeline) {
  for (const Wait& wait : timeline.waits()) {
    if (!has_room()) return;
    line_.clear();
    const auto out = std::back_inserter(line_);
    fmt::format_to(out,
                   "{{\"event\":\"wait\",\"step\":{},\"lane\":\"{}\",\"begin_ns\":{},\"end_ns\":{},\"cause\":\"{}\"",
                   step, transload::name_of(wait.lane), from(timeline, wait.begin_ns), from(timeline, wait.end_ns),
                   transload::name_of(wait.cause));
    if (wait.block.valid()) fmt::format_to(out, ",\"block\":{}", wait.block.value);
    if (concerns_tier(wait.cause)) fmt::format_to(out, ",\"tier\":\"{}\"", transload::name_of(wait.tier));
    if (wait.source != Lane::issue) fmt::format_to(out, ",\"source\":\"{}\"", transload::name_of(wait.source));
    fmt::format_to(out, "}}\n");
    put_line();
  }
}

void RunRecord::write_memory(std::uint64_t step, const Timeline& timeline) {
  for (const MemorySample& sample : timeline.samples()) {
    if (!has_room()) return;
    line_.clear();
    const auto out = std::back_inserter(line_);
    fmt::format_to(out, "{{\"event\":\"memory\",\"step\":{},\"tier\":\"{}\",\"at_ns\":{},\"used\":{}", step,
                   transload::name_of(sample.tier), from(timeline, sample.at_ns), sample.used_bytes);
    for (int use = 0; use < kMemoryUses; ++use)
      if (const std::uint64_t bytes = sample.bytes[static_cast<std::size_t>(use)]; bytes > 0)
        fmt::format_to(out, ",\"{}\":{}", transload::name_of(static_cast<MemoryKind>(use)), bytes);
    fmt::format_to(out, "}}\n");
    put_line();
  }
}

void RunRecord::write_step(std::uint64_t step, bool deviated, std::string_view fields,
                           const std::vector<AccessEvent>& accesses, const Timeline* timeline) {
  const bool detailed = expects_events(step) || (deviated && has_room());
  ++steps_;
  if (detailed) write_accesses(step, accesses);
  if (detailed && timeline != nullptr) {
    write_spans(step, *timeline);
    write_waits(step, *timeline);
    write_memory(step, *timeline);
  }
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"event\":\"step\",\"step\":{},\"deviated\":{}{}{}", step, deviated,
                 fields.empty() ? "" : ",", fields);
  if (timeline != nullptr) fmt::format_to(std::back_inserter(line_), ",\"events_lost\":{}", timeline->lost());
  line_ += "}\n";
  put(line_);
}

}  // namespace transload
