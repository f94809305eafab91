#include "report/parse_events.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace transload::report {

namespace {

/// The number of the name among `count` names, which name_of gives.
template <class Name>
std::optional<int> index_of(std::optional<std::string_view> text, int count, Name name) {
  if (!text) return std::nullopt;
  for (int i = 0; i < count; ++i)
    if (*text == name(i)) return i;
  return std::nullopt;
}

std::optional<int> lane_named(std::optional<std::string_view> text) { return index_of(text, kLanes, lane_name); }

std::optional<Tier> tier_named(std::optional<std::string_view> text) {
  const auto i = index_of(text, 3, [](int t) { return std::string_view(name_of(static_cast<Tier>(t))); });
  return i ? std::optional(static_cast<Tier>(*i)) : std::nullopt;
}

std::optional<WaitCause> cause_named(std::optional<std::string_view> text) {
  const auto i = index_of(text, 6, [](int c) { return std::string_view(name_of(static_cast<WaitCause>(c))); });
  return i ? std::optional(static_cast<WaitCause>(*i)) : std::nullopt;
}

std::optional<AccessKind> kind_named(std::optional<std::string_view> text) {
  constexpr std::string_view kNames[] = {"read", "write", "update", "consume"};
  const auto i = index_of(text, 4, [&](int k) { return kNames[k]; });
  return i ? std::optional(static_cast<AccessKind>(*i)) : std::nullopt;
}

/// Of a record from before `found` was written: only whether the bytes were there.
Found found_named(std::optional<std::string_view> text, std::optional<bool> ready) {
  constexpr std::string_view kNames[] = {"none", "hit", "late", "demand"};
  if (const auto i = index_of(text, 4, [&](int f) { return kNames[f]; })) return static_cast<Found>(*i);
  return ready.value_or(true) ? Found::hit : Found::late;
}

std::int32_t small(std::optional<std::int64_t> v) {
  return v && *v >= 0 && *v <= INT32_MAX ? static_cast<std::int32_t>(*v) : -1;
}

constexpr std::int64_t kMostTime = INT64_MAX / 4;  // 73 years in ns: differences and sums of two stay in range

/// A time or a duration; one beyond any run's is none.
std::optional<std::int64_t> time_of(const FlatLine& line, const char* key) {
  const auto ns = line.whole(key);
  return ns && *ns >= -kMostTime && *ns <= kMostTime ? ns : std::nullopt;
}

bool truth_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::uint64_t whole_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  const double v = found->get<double>();
  return v > 0 && v < 1.8e19 ? static_cast<std::uint64_t>(v) : 0;
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

bool parse_access(const FlatLine& line, AccessLine& access) {
  const std::int32_t tick = small(line.whole("tick")), block = small(line.whole("block"));
  const auto tier = tier_named(line.text("tier"));
  const auto kind = kind_named(line.text("kind"));
  const auto start = time_of(line, "start_ns"), wait = time_of(line, "wait_ns");
  if (tick < 0 || block < 0 || !tier || !kind || !start) return false;
  access = {.start_ns = *start,
            .wait_ns = wait.value_or(0),
            .tick = static_cast<std::uint32_t>(tick),
            .block = static_cast<std::uint32_t>(block),
            .tier = *tier,
            .kind = *kind,
            .found = Found::none};
  const auto ready = line.truth("ready");
  access.found = found_named(line.text("found"), ready);
  return true;
}

bool parse_span(const FlatLine& line, StepEvents& events, SpanLine& span) {
  const auto lane = lane_named(line.text("lane"));
  const auto begin = time_of(line, "begin_ns"), end = time_of(line, "end_ns");
  if (!lane || !begin || !end || *end < *begin) return false;
  const auto name = line.text("name");
  span = {.begin_ns = *begin, .end_ns = *end, .lane = static_cast<std::uint8_t>(*lane)};
  span.name = name ? events.name_id(*name) : std::uint16_t{0};
  span.index = small(line.whole("index"));
  span.block = small(line.whole("block"));
  span.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, line.whole("bytes").value_or(0)));
  span.ahead = line.truth("ahead").value_or(false);
  return true;
}

bool parse_wait(const FlatLine& line, WaitLine& wait) {
  const auto lane = lane_named(line.text("lane"));
  const auto begin = time_of(line, "begin_ns"), end = time_of(line, "end_ns");
  const auto cause = cause_named(line.text("cause"));
  if (!lane || !begin || !end || *end < *begin || !cause) return false;
  wait = {.begin_ns = *begin, .end_ns = *end, .lane = static_cast<std::uint8_t>(*lane), .cause = *cause};
  wait.block = small(line.whole("block"));
  wait.tier = tier_named(line.text("tier")).value_or(Tier::host);
  wait.source = static_cast<std::int8_t>(lane_named(line.text("source")).value_or(-1));
  return true;
}

bool parse_memory(const FlatLine& line, MemoryLine& memory) {
  const auto tier = tier_named(line.text("tier"));
  const auto at = time_of(line, "at_ns"), used = line.whole("used");
  if (!tier || !at || !used || *used < 0) return false;
  memory = {.at_ns = *at, .used = static_cast<std::uint64_t>(*used), .tier = *tier};
  line.each_whole([&](std::string_view key, std::int64_t bytes) {
    const auto use = index_of(key, kMemoryUses, [](int u) { return name_of(static_cast<MemoryKind>(u)); });
    if (use && bytes > 0) memory.bytes[static_cast<std::size_t>(*use)] = static_cast<std::uint64_t>(bytes);
  });
  return true;
}

bool parse_step(const Json& line, StepLine& step) {
  step = {.step = whole_of(line, "step"), .tokens = whole_of(line, "tokens"), .wall_ns = whole_of(line, "wall_ns")};
  if (step.step == 0 || step.wall_ns > static_cast<std::uint64_t>(kMostTime)) return false;
  step.compute_ns = whole_of(line, "compute_ns");
  step.update_ns = whole_of(line, "update_ns");
  step.wait_ns = whole_of(line, "wait_ns");
  step.hits = whole_of(line, "hits");
  step.late = whole_of(line, "late");
  step.demand = whole_of(line, "demand");
  step.wasted = whole_of(line, "wasted");
  step.deviations = whole_of(line, "deviations");
  step.resident_bytes = whole_of(line, "resident_bytes");
  step.events_lost = whole_of(line, "events_lost");
  step.clock_error_ns = whole_of(line, "clock_error_ns");
  step.deviated = truth_of(line, "deviated");
  step.skipped = truth_of(line, "skipped");
  step.planned = truth_of(line, "planned");
  step.device_clock = text_of(line, "clock") == "device";
  if (const auto loss = line.find("loss"); loss != line.end() && loss->is_number()) step.loss = loss->get<double>();
  const auto links = line.find("links");
  for (int i = 0; i < kLinks && links != line.end() && links->is_object(); ++i)
    if (const auto link = links->find(name_of(static_cast<Link>(i))); link != links->end() && link->is_object())
      step.links[static_cast<std::size_t>(i)] = {whole_of(*link, "bytes"), whole_of(*link, "transfers"),
                                                 whole_of(*link, "busy_ns")};
  return true;
}

namespace {

/// "chunk 12 moment1" → 12.
std::int32_t chunk_of(std::string_view name) {
  constexpr std::string_view kChunk = "chunk ";
  std::int32_t chunk = -1;
  if (name.starts_with(kChunk)) std::from_chars(name.data() + kChunk.size(), name.data() + name.size(), chunk);
  return chunk;
}

Header::Field field_of(const std::string& path, const Json& value) {
  using Kind = Header::Field::Kind;
  Header::Field field{.path = path};
  if (value.is_null()) return field;
  field.text = value.is_string() ? value.get<std::string>() : value.dump();
  field.number = value.is_number() ? value.get<double>() : 0;
  field.kind = value.is_string()    ? Kind::text
               : value.is_number()  ? Kind::number
               : value.is_boolean() ? Kind::truth
                                    : Kind::text;
  return field;
}

void add_fields(const std::string& path, const Json& object, std::vector<Header::Field>& fields) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object())
      add_fields(path + key + ".", value, fields);
    else
      fields.push_back(field_of(path + key, value));
  }
}

}  // namespace

void parse_header(Json&& line, Header& header) {
  header = {};
  header.optimizer = text_of(line, "kind") == "optimizer";
  if (const auto blocks = line.find("blocks"); blocks != line.end() && blocks->is_array())
    for (const Json& block : *blocks) {
      Block& b = header.blocks.emplace_back();
      if (!block.is_array() || block.size() < 3 || !block[0].is_string() || !block[1].is_number_unsigned() ||
          !block[2].is_string())
        continue;
      b.name = block[0].get<std::string>();
      b.bytes = block[1].get<std::uint64_t>();
      b.use = use_of(block[2].get_ref<const std::string&>());
      b.chunk = chunk_of(b.name);
    }
  line.erase("blocks");
  line.erase("event");
  add_fields("", line, header.fields);
}

void parse_outlook(const Json& line, Outlook& outlook) {
  outlook = {.step = whole_of(line, "step"), .step_ns = whole_of(line, "step_ns")};
  outlook.lower_bound_ns = whole_of(line, "lower_bound_ns");
  outlook.plain_bound_ns = whole_of(line, "plain_bound_ns");
  outlook.forward_ns = whole_of(line, "forward_ns");
  outlook.backward_ns = whole_of(line, "backward_ns");
  outlook.update_ns = whole_of(line, "update_ns");
  outlook.binds = text_of(line, "binds");
  const auto points = line.find("what_if");
  if (points == line.end() || !points->is_array()) return;
  for (const Json& point : *points) {
    if (!point.is_object()) continue;
    WhatIf& w = outlook.what_if.emplace_back();
    w = {.change = text_of(point, "change"),
         .value = text_of(point, "value"),
         .more_bytes = whole_of(point, "more_bytes")};
    w.compute_ns = whole_of(point, "compute_ns");
    w.step_ns = whole_of(point, "step_ns");
    w.lower_bound_ns = whole_of(point, "lower_bound_ns");
    w.kept_ns = whole_of(point, "kept_ns");
    const auto links = point.find("links");
    for (int i = 0; i < kLinks && links != point.end() && links->is_object(); ++i)
      w.link_bytes[static_cast<std::size_t>(i)] = whole_of(*links, name_of(static_cast<Link>(i)));
  }
}

void parse_commit(const Json& line, Commit& commit) {
  commit = {.step = whole_of(line, "step"),
            .written_bytes = whole_of(line, "written_bytes"),
            .seconds = number_of(line, "seconds")};
}

}  // namespace transload::report
