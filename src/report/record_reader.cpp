#include "report/record_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/flat_line.h"
#include "report/parse_events.h"
#include "report/record_lines.h"

namespace transload::report {

namespace {

constexpr std::uint64_t kKnownFormat = 1;
constexpr int kMostDepth = 32;  // a run nests its lines only a few deep

/// True of a line nested so deep that walking over it could overflow the stack: no run writes such.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size() && depth <= kMostDepth; ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += (c == '{' || c == '[') ? 1 : (c == '}' || c == ']') ? -1 : 0;
    }
  }
  return depth > kMostDepth;
}

class Reading {
 public:
  explicit Reading(RecordVisitor& visitor) : visitor_(visitor) {}

  void line(std::string_view text, std::uint64_t number) {
    ++facts_.lines;
    number_ = number;
    if (!flat_.parse(text) || !flat_event()) parse(text);
  }
  ReadingFacts& facts() { return facts_; }
  void finish() { facts_.open_step = !events_.empty(); }

 private:
  /// True where the line was one of those that come by the million.
  bool flat_event() {
    const auto event = flat_.text("event");
    if (!event) return false;
    if (*event == "access") return event_of(events_.accesses, [&](AccessLine& a) { return parse_access(flat_, a); });
    if (*event == "span") return event_of(events_.spans, [&](SpanLine& s) { return parse_span(flat_, events_, s); });
    if (*event == "wait") return event_of(events_.waits, [&](WaitLine& w) { return parse_wait(flat_, w); });
    if (*event == "memory") return event_of(events_.memory, [&](MemoryLine& m) { return parse_memory(flat_, m); });
    return false;
  }

  template <class T, class Parse>
  bool event_of(std::vector<T>& all, const Parse& parse) {
    const auto step = flat_.whole("step");
    T one;
    if (!step || *step <= 0 || !parse(one)) {
      garbled();
      return true;
    }
    ++facts_.events;
    begin_step(static_cast<std::uint64_t>(*step));
    if (all.size() < StepEvents::kMost) {
      all.push_back(one);
    } else {
      ++events_.left_out;
      ++facts_.left_out;
    }
    return true;
  }

  /// Events of another step: those before never had their line (the process died), and are of no use.
  void begin_step(std::uint64_t step) {
    if (events_.step == step) return;
    events_.clear();
    events_.step = step;
  }

  void parse(std::string_view text) {
    if (too_deep(text)) return garbled();
    Json line = Json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("event") || !line["event"].is_string()) return garbled();
    const std::string event = line["event"].get<std::string>();
    if (event == "step") return step(line);
    if (event == "run") return header(std::move(line));
    if (event == "outlook") {
      Outlook outlook;
      parse_outlook(line, outlook);
      return visitor_.outlook(outlook);
    }
    rare(event, line);
  }

  void rare(const std::string& event, const Json& line) {
    if (event == "commit") {
      Commit commit;
      parse_commit(line, commit);
      visitor_.commit(commit);
    } else if (event == "evaluation") {
      visitor_.evaluation(whole_of(line, "step"), number_of(line, "loss"));
    } else if (event == "note") {
      if (line.contains("text") && line["text"].is_string()) visitor_.note(line["text"].get<std::string>());
    } else if (event == "end") {
      facts_.ended = true;
    } else if (facts_.unknown++ == 0) {
      facts_.unknown_event = event;
    }
  }

  void step(const Json& line) {
    StepLine step;
    if (!parse_step(line, step)) return garbled();
    ++facts_.steps;
    facts_.ended = false;
    facts_.lost += step.events_lost;
    begin_step(step.step);
    visitor_.step(step, events_);
    events_.clear();
  }

  void header(Json&& line) {
    ++facts_.headers;
    facts_.ended = false;
    facts_.newest_format = std::max(facts_.newest_format, whole_of(line, "format"));
    events_.clear();
    Header header;
    parse_header(std::move(line), header);
    facts_.optimizer = header.optimizer;
    facts_.version = header.text("version");
    visitor_.header(header);
  }

  void garbled() {
    if (facts_.garbled++ == 0) facts_.first_garbled = number_;
  }

  RecordVisitor& visitor_;
  FlatLine flat_;
  StepEvents events_;
  ReadingFacts facts_;
  std::uint64_t number_ = 0;
};

std::string count(std::uint64_t n, const char* one, const char* many) {
  return n == 1 ? fmt::format("one {}", one) : fmt::format("{} {}", n, many);
}

}  // namespace

ReadingFacts read_record(const std::string& path, RecordVisitor& visitor) {
  RecordLines lines(path);
  Reading reading(visitor);
  std::string_view text;
  for (;;) {
    const RecordLines::Found found = lines.next(text);
    if (found == RecordLines::Found::end) break;
    if (found == RecordLines::Found::line && !text.empty()) reading.line(text, lines.number());
    if (found == RecordLines::Found::too_long) ++reading.facts().too_long;
    if (found == RecordLines::Found::torn) reading.facts().torn = true;
  }
  reading.finish();
  reading.facts().bytes = lines.bytes();
  return reading.facts();
}

std::vector<std::string> ReadingFacts::missing() const {
  std::vector<std::string> out;
  const auto say = [&out](bool when, const std::string& text) {
    if (when) out.push_back(text);
  };
  say(headers == 0, "The record has no header: budgets, rates and names of blocks are not known.");
  say(newest_format > kKnownFormat,
      fmt::format("The record is of format {}, newer than the {} that this version knows.", newest_format,
                  kKnownFormat));
  say(steps == 0, "No step is in the record.");
  say(torn || open_step || (!ended && !optimizer && steps > 0),
      torn || open_step ? "The record ends in the middle of a step: the run was killed, or is still going on."
                        : "The record does not say that the run ended: it was killed, or is still going on.");
  say(garbled > 0, fmt::format("{} could not be read (the first is line {}) and {} left out.",
                               count(garbled, "line", "lines"), first_garbled, garbled == 1 ? "was" : "were"));
  say(too_long > 0, fmt::format("{} longer than 32 MiB {} left out.", count(too_long, "line", "lines"),
                                too_long == 1 ? "was" : "were"));
  say(unknown > 0, fmt::format("{} of kinds that this version does not know (\"{}\" and the like) {} left out.",
                               count(unknown, "event", "events"), unknown_event, unknown == 1 ? "was" : "were"));
  say(left_out > 0, fmt::format("{} of steps with very many are left out here.", count(left_out, "event", "events")));
  say(lost > 0, fmt::format("The run had no room for {} of its steps.", count(lost, "event", "events")));
  return out;
}

}  // namespace transload::report
