// Two runs side by side: settings, bytes, time.
#include <fmt/format.h>

#include <cmath>

#include "base/size.h"
#include "report/tables.h"

namespace transload::report {

namespace {

class Comparison {
 public:
  Comparison(const RunModel& one, const RunModel& other) : one_(one), other_(other) {}

  void setting(const std::string& name, std::string_view path, bool bytes) {
    const std::string a = text(one_, path, bytes), b = text(other_, path, bytes);
    if (a.empty() && b.empty()) return;
    row(name, a.empty() ? "-" : a, b.empty() ? "-" : b, a == b ? "same" : "differs");
  }
  void bytes(const std::string& name, double a, double b) {
    if (a == 0 && b == 0) return;
    row(name, format_size(static_cast<std::uint64_t>(a)), format_size(static_cast<std::uint64_t>(b)), ratio(a, b));
  }
  void time(const std::string& name, double a, double b) {
    if (a == 0 && b == 0) return;
    row(name, time_of(a), time_of(b), ratio(a, b));
  }
  void number(const std::string& name, double a, double b) {
    row(name, fmt::format("{:.6g}", a), fmt::format("{:.6g}", b), ratio(a, b));
  }
  std::vector<std::vector<Cell>> rows;

 private:
  static std::string text(const RunModel& m, std::string_view path, bool bytes) {
    return bytes ? (m.header.number(path) > 0 ? format_size(m.header.bytes(path)) : "") : m.header.text(path);
  }
  static std::string time_of(double s) { return s < 10 ? fmt::format("{:.4g} ms", s * 1000) : format_duration(s); }
  static std::string ratio(double a, double b) { return a > 0 ? fmt::format("{:.3f}", b / a) : "-"; }
  void row(const std::string& name, const std::string& a, const std::string& b, const std::string& c) {
    rows.push_back({{name}, {a}, {b}, {c}});
  }
  const RunModel &one_, &other_;
};

void add_settings(Comparison& c) {
  c.setting("model", "model", false);
  c.setting("version", "version", false);
  c.setting("device", "device", false);
  c.setting("policy", "policy", false);
  c.setting("threads", "threads", false);
  c.setting("batch size", "shape.batch", false);
  c.setting("sequence length", "shape.length", false);
  c.setting("accumulate", "shape.accumulate", false);
  c.setting("recompute", "shape.recompute", false);
  c.setting("chunk size", "chunk_size", true);
  c.setting("device memory", "budgets.device", true);
  c.setting("host memory", "budgets.host", true);
  c.setting("workspace", "workspace_bytes", true);
  c.setting("store", "store_bytes", true);
  c.setting("optimizer's path", "paths.optimizer", false);
  c.setting("I/O path", "paths.io", false);
}

double part_seconds(const RunModel& m, Part part) {
  if (!m.shown || m.shown->events.spans.empty()) return 0;
  return static_cast<double>(attribute(*m.shown).of(part)) * 1e-9;
}

}  // namespace

Table comparison_table(const RunModel& one, const RunModel& other) {
  Comparison c(one, other);
  add_settings(c);
  for (int i = 0; i < kLinks; ++i)
    c.bytes(fmt::format("{} a step", name_of(static_cast<Link>(i))),
            one.medians.link_bytes[static_cast<std::size_t>(i)], other.medians.link_bytes[static_cast<std::size_t>(i)]);
  c.bytes("resident memory, most", static_cast<double>(one.totals.peak_resident_bytes),
          static_cast<double>(other.totals.peak_resident_bytes));
  c.time("a step, median", one.medians.wall_s, other.medians.wall_s);
  for (int p = 0; p < kParts; ++p)
    c.time(fmt::format("in the step shown: {}", title_of(static_cast<Part>(p))),
           part_seconds(one, static_cast<Part>(p)), part_seconds(other, static_cast<Part>(p)));
  if (one.outlook && other.outlook)
    c.time("lower bound", static_cast<double>(one.outlook->lower_bound_ns) * 1e-9,
           static_cast<double>(other.outlook->lower_bound_ns) * 1e-9);
  c.number("steps", static_cast<double>(one.totals.steps), static_cast<double>(other.totals.steps));
  c.number("hits", static_cast<double>(one.totals.hits), static_cast<double>(other.totals.hits));
  c.number("late", static_cast<double>(one.totals.late), static_cast<double>(other.totals.late));
  c.number("demand", static_cast<double>(one.totals.demand), static_cast<double>(other.totals.demand));
  c.number("wasted", static_cast<double>(one.totals.wasted), static_cast<double>(other.totals.wasted));
  if (one.last_loss && other.last_loss) c.number("loss of the last step", *one.last_loss, *other.last_loss);
  return {.id = "compare",
          .title = "Two runs",
          .says = "",
          .head = {"", "this run", "the other", "other / this"},
          .rows = c.rows};
}

}  // namespace transload::report
