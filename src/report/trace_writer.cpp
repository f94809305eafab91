// Chrome trace events (JSON), which Perfetto and chrome://tracing load: a process for each rank, lanes as threads,
// flows from each fetch to the access that used it, counters of each tier. Steps follow each other as their times add
// up; what lies between steps is not in a record. Written as the record is read: one step is in memory.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/os.h"
#include "report/parse_events.h"
#include "report/record_reader.h"
#include "report/report.h"

namespace transload::report {

namespace {

/// A JSON text file with a list of events, in pieces.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path)
      : file_(os::File::open_or_throw(path, O_WRONLY | O_CREAT | O_TRUNC)),
        text_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[") {}

  template <class... T>
  void event(fmt::format_string<T...> format, T&&... values) {
    text_ += first_ ? "\n{" : ",\n{";
    first_ = false;
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(values)...);
    text_ += '}';
    if (text_.size() >= (std::size_t{1} << 20)) put();
  }
  void finish() {
    text_ += "\n]}\n";
    put();
  }

 private:
  void put() {
    file_.write_or_throw(text_.data(), text_.size(), written_);
    written_ += text_.size();
    text_.clear();
  }
  os::File file_;
  std::string text_;
  std::uint64_t written_ = 0;
  bool first_ = true;
};

/// Threads of a rank's process: a lane has several where its work overlaps.
constexpr int kTracksALane = 32, kIssueAccesses = 900, kWaits = 600;

class TraceVisitor final : public RecordVisitor {
 public:
  TraceVisitor(TraceFile& file, int rank) : file_(file), rank_(rank) {
    file_.event(R"("ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":"rank {}"}})", rank_, rank_);
  }

  void header(Header& header) override { header_ = std::move(header); }

  void step(const StepLine& step, const StepEvents& events) override {
    const std::int64_t begin = at_ns_;
    at_ns_ += static_cast<std::int64_t>(step.wall_ns);
    if (events.empty()) return;
    file_.event(R"("ph":"X","name":"step {}","cat":"step","pid":{},"tid":1,"ts":{},"dur":{})", step.step, rank_,
                us(begin), us(static_cast<std::int64_t>(step.wall_ns)));
    name_thread(1, "steps");
    write_spans(events, begin);
    write_waits(events, begin);
    write_accesses(events, begin);
    write_flows(events, begin);
    write_memory(events, begin);
  }

 private:
  /// Microseconds, to the nanosecond. Never negative: what began before the first step begins with it.
  static std::string us(std::int64_t ns) {
    ns = std::max<std::int64_t>(0, ns);
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  }
  std::string name_of_block(std::int64_t block) const {
    if (block < 0 || block >= static_cast<std::int64_t>(header_.blocks.size())) return fmt::format("block {}", block);
    return escaped(header_.blocks[static_cast<std::size_t>(block)].name);
  }
  static std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20) continue;
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out;
  }
  void name_thread(int tid, const std::string& name) {
    if (!named_.emplace(tid, name).second) return;
    file_.event(R"("ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}})", rank_, tid, name);
    file_.event(R"("ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}})", rank_, tid, tid);
  }

  /// The first track of a lane that is free at `begin`: slices of one track must not overlap.
  int track(int lane, std::int64_t begin, std::int64_t end) {
    auto& ends = track_ends_[lane];
    std::size_t t = 0;
    while (t < ends.size() && ends[t] > begin) ++t;
    if (t == ends.size() && t < kTracksALane) ends.push_back(0);
    if (t == ends.size()) t = 0;
    ends[t] = std::max(ends[t], end);
    const int tid = 10 + lane * kTracksALane + static_cast<int>(t);
    name_thread(tid, t == 0 ? std::string(lane_name(lane)) : fmt::format("{} {}", lane_name(lane), t + 1));
    return tid;
  }

  void write_spans(const StepEvents& events, std::int64_t begin) {
    std::vector<std::uint32_t> order(events.spans.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return events.spans[a].begin_ns < events.spans[b].begin_ns; });
    span_tids_.assign(events.spans.size(), 0);
    for (const std::uint32_t i : order) {
      const SpanLine& s = events.spans[i];
      const int tid = span_tids_[i] = track(s.lane, begin + s.begin_ns, begin + s.end_ns);
      const std::string what = s.lane < kLinks ? name_of_block(s.block) : escaped(events.names[s.name]);
      const std::string index = s.index >= 0 ? fmt::format(" {}", s.index) : "";
      file_.event(
          R"("ph":"X","name":"{}{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"bytes":{},"ahead":{}}})",
          what, index, lane_name(s.lane), rank_, tid, us(begin + s.begin_ns), duration(begin, s.begin_ns, s.end_ns),
          s.bytes, s.ahead);
    }
  }

  static std::string duration(std::int64_t base, std::int64_t begin, std::int64_t end) {
    return us(std::max<std::int64_t>(0, base + end) - std::max<std::int64_t>(0, base + begin));
  }

  void write_waits(const StepEvents& events, std::int64_t begin) {
    for (const WaitLine& w : events.waits) {
      const int tid = kWaits + w.lane;
      name_thread(tid, fmt::format("waits of {}", lane_name(w.lane)));
      const std::string block = w.block >= 0 ? ": " + name_of_block(w.block) : "";
      file_.event(R"("ph":"X","name":"{}{}","cat":"wait","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"tier":"{}"}})",
                  name_of(w.cause), block, rank_, tid, us(begin + w.begin_ns), duration(begin, w.begin_ns, w.end_ns),
                  name_of(w.tier));
    }
  }

  void write_accesses(const StepEvents& events, std::int64_t begin) {
    constexpr const char* kFound[] = {"none", "hit", "late", "demand"};
    if (!events.accesses.empty()) name_thread(kIssueAccesses, "accesses");
    for (const AccessLine& a : events.accesses)
      file_.event(
          R"("ph":"X","name":"{}","cat":"access","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"tick":{},"found":"{}"}})",
          name_of_block(a.block), rank_, kIssueAccesses, us(begin + a.start_ns),
          duration(begin, a.start_ns, a.start_ns + a.wait_ns), a.tick, kFound[static_cast<int>(a.found)]);
  }

  /// Accesses of one block at one tier, by their start.
  using Uses = std::map<std::pair<std::uint32_t, Tier>, std::vector<const AccessLine*>>;

  /// From a fetch to the first access of its block, at the tier that it went to, that ended after the fetch did.
  void write_flows(const StepEvents& events, std::int64_t begin) {
    Uses uses;
    for (const AccessLine& a : events.accesses) uses[{a.block, a.tier}].push_back(&a);
    for (std::size_t i = 0; i < events.spans.size(); ++i) {
      const SpanLine& s = events.spans[i];
      const bool to_host = s.lane == lane_of(Link::nvme_read), to_device = s.lane == lane_of(Link::host_to_device);
      if ((!to_host && !to_device) || s.block < 0) continue;
      const auto found = uses.find({static_cast<std::uint32_t>(s.block), to_device ? Tier::device : Tier::host});
      if (found == uses.end()) continue;
      for (const AccessLine* a : found->second) {
        if (a->start_ns + a->wait_ns < s.end_ns) continue;
        flow(span_tids_[i], begin + s.end_ns, begin + a->start_ns + a->wait_ns);
        break;
      }
    }
  }
  void flow(int from_tid, std::int64_t from, std::int64_t to) {
    const std::uint64_t id = ++flows_;
    file_.event(R"("ph":"s","name":"use","cat":"fetch","id":{},"pid":{},"tid":{},"ts":{})",
                id + (std::uint64_t{1} << 40) * static_cast<std::uint64_t>(rank_), rank_, from_tid, us(from));
    file_.event(R"("ph":"f","bp":"e","name":"use","cat":"fetch","id":{},"pid":{},"tid":{},"ts":{})",
                id + (std::uint64_t{1} << 40) * static_cast<std::uint64_t>(rank_), rank_, kIssueAccesses, us(to));
  }

  void write_memory(const StepEvents& events, std::int64_t begin) {
    for (const MemoryLine& m : events.memory) {
      std::string uses;
      for (int use = 0; use < kMemoryUses; ++use)
        fmt::format_to(std::back_inserter(uses), "{}\"{}\":{}", use == 0 ? "" : ",",
                       name_of(static_cast<MemoryKind>(use)), m.bytes[static_cast<std::size_t>(use)]);
      file_.event(R"("ph":"C","name":"{} memory","pid":{},"tid":0,"ts":{},"args":{{{}}})", name_of(m.tier), rank_,
                  us(begin + m.at_ns), uses);
    }
  }

  TraceFile& file_;
  const int rank_;
  Header header_;
  std::int64_t at_ns_ = 0;
  std::uint64_t flows_ = 0;
  std::map<int, std::string> named_;
  std::map<int, std::vector<std::int64_t>> track_ends_;
  std::vector<int> span_tids_;
};

}  // namespace

void write_trace(const std::string& run, const std::string& path) {
  const std::vector<std::string> files = record_files(run);
  TraceFile file(path);
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    TraceVisitor visitor(file, static_cast<int>(rank));
    read_record(files[rank], visitor);
  }
  file.finish();
}

}  // namespace transload::report
