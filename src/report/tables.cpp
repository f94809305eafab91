#include "report/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size.h"

namespace transload::report {

namespace {

double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

Cell plain(std::string text) { return {.text = std::move(text)}; }
Cell size_cell(const std::string& key, std::uint64_t bytes) {
  return {.text = format_size(bytes), .key = key, .value = fmt::format("{}", bytes)};
}
Cell count_cell(const std::string& key, std::uint64_t n) {
  return {.text = fmt::format("{}", n), .key = key, .value = fmt::format("{}", n)};
}
/// Durations finer than format_duration's whole milliseconds below 100 of them.
std::string time_text(double s) {
  if (s > 0 && s < 1e-4) return fmt::format("{:.3g} µs", s * 1e6);
  if (s > 0 && s < 0.1) return fmt::format("{:.3g} ms", s * 1000);
  return s >= 1 && s < 10 ? fmt::format("{:.2f} s", s) : format_duration(s);
}
Cell ns_cell(const std::string& key, std::uint64_t ns) {
  return {.text = time_text(seconds(ns)), .key = key, .value = fmt::format("{}", ns)};
}
std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-"; }

bool of_device(int link) { return link == lane_of(Link::host_to_device) || link == lane_of(Link::device_to_host); }

const char* link_title(int link) {
  constexpr const char* kTitles[] = {"NVMe read", "NVMe write", "host to device", "device to host"};
  return kTitles[link];
}

}  // namespace

Table overview_table(const RunModel& m) {
  Table t{.id = "overview", .title = "The run", .head = {"", ""}};
  const auto row = [&t](const char* name, Cell cell) {
    if (!cell.text.empty()) t.rows.push_back({plain(name), std::move(cell)});
  };
  row("model", plain(m.header.optimizer ? "drop-in optimizer" : m.header.text("model")));
  if (m.header.number("parameters") > 0) row("parameters", count_cell("parameters", m.header.bytes("parameters")));
  row("device", plain(m.header.text("device")));
  row("steps in the record", count_cell("steps", m.totals.steps));
  if (m.totals.steps > 0) row("first and last step", plain(fmt::format("{} to {}", m.first_step, m.last_step)));
  if (m.facts.headers > 1) row("processes (resumed)", count_cell("processes", m.facts.headers));
  row(m.medians.steady ? "a steady-state step, median" : "a step, median",
      {.text = time_text(m.medians.wall_s), .key = "median_wall_s", .value = fmt::format("{:.9f}", m.medians.wall_s)});
  if (m.medians.wall_s > 0 && m.medians.tokens > 0)
    row("tokens a second", plain(fmt::format("{:.0f}", m.medians.tokens / m.medians.wall_s)));
  if (m.outlook) {
    row("it cannot be shorter than", ns_cell("lower_bound_ns", m.outlook->lower_bound_ns));
    row("of that limit", plain(percent(seconds(m.outlook->lower_bound_ns), m.medians.wall_s)));
    row("the planner expects", ns_cell("predicted_ns", m.outlook->step_ns));
  }
  if (m.first_loss && m.last_loss)
    row("loss, first and last step", plain(fmt::format("{:.4f} to {:.4f}", *m.first_loss, *m.last_loss)));
  if (!m.evaluations.empty())
    row("last validation loss",
        plain(fmt::format("{:.4f} (step {})", m.evaluations.back().loss, m.evaluations.back().step)));
  row("commits", plain(m.totals.commits == 0
                           ? "none"
                           : fmt::format("{}, {} in all", m.totals.commits, format_duration(m.totals.commit_s))));
  if (m.totals.peak_resident_bytes > 0)
    row("resident memory, most after a step", size_cell("resident_bytes", m.totals.peak_resident_bytes));
  return t;
}

Table parts_table(const RunModel& m) {
  Table t{.id = "parts", .title = "Where a step's time goes", .head = {"", "time", "share"}};
  if (!m.shown || m.shown->events.spans.empty()) {
    t.says = "No step of this record has its events, so only sums are known.";
    t.rows.push_back({plain("kernels: forward and backward"), plain(time_text(m.medians.compute_s)),
                      plain(percent(m.medians.compute_s, m.medians.wall_s))});
    t.rows.push_back({plain("kernels: updates"), plain(time_text(m.medians.update_s)),
                      plain(percent(m.medians.update_s, m.medians.wall_s))});
    t.rows.push_back({plain("the issuing thread in the engine"), plain(time_text(m.medians.wait_s)),
                      plain(percent(m.medians.wait_s, m.medians.wall_s))});
    return t;
  }
  const Attribution parts = attribute(*m.shown);
  t.says = fmt::format("Step {}: every instant belongs to one part.", m.shown->line.step);
  for (int p = 0; p < kParts; ++p) {
    const auto part = static_cast<Part>(p);
    if (parts.of(part) == 0) continue;
    const bool works = part == Part::computation || part == Part::update || part == Part::between;
    t.rows.push_back({plain(fmt::format("{}{}", works ? "" : "waiting for ", title_of(part))),
                      ns_cell(fmt::format("part.{}", key_of(part)), static_cast<std::uint64_t>(parts.of(part))),
                      plain(percent(static_cast<double>(parts.of(part)), static_cast<double>(parts.wall_ns)))});
  }
  t.rows.push_back({plain("the step"), ns_cell("shown_wall_ns", m.shown->line.wall_ns), plain("100 %")});
  return t;
}

Table links_table(const RunModel& m) {
  Table t{.id = "links",
          .title = "Bytes on each link",
          .says = "A step in the steady state; least: what no schedule can go below under these budgets.",
          .head = {"", "a step", "planned", "least", "ratio", "whole run", "busy", "rate at start"}};
  for (int i = 0; i < kLinks; ++i) {
    if (of_device(i) && !m.header.has_device()) continue;
    const char* name = name_of(static_cast<Link>(i));
    const auto k = static_cast<std::size_t>(i);
    const double bytes = m.medians.link_bytes[k], least = m.header.number(fmt::format("links.{}.least_bytes", name));
    const LinkUse& all = m.totals.links[k];
    const bool known = m.header.find("links.nvme_read.least_bytes") != nullptr;
    t.rows.push_back(
        {plain(link_title(i)), size_cell(fmt::format("links.{}.step_bytes", name), static_cast<std::uint64_t>(bytes)),
         known ? size_cell(fmt::format("links.{}.planned_step_bytes", name),
                           m.header.bytes(fmt::format("links.{}.planned_step_bytes", name)))
               : plain("-"),
         known ? size_cell(fmt::format("links.{}.least_bytes", name), static_cast<std::uint64_t>(least)) : plain("-"),
         plain(known && least > 0 ? fmt::format("{:.2f}", bytes / least) : "-"),
         size_cell(fmt::format("links.{}.bytes", name), all.bytes),
         ns_cell(fmt::format("links.{}.busy_ns", name), all.busy_ns),
         plain(m.header.number(fmt::format("rates.{}", name)) > 0
                   ? format_rate(m.header.number(fmt::format("rates.{}", name)))
                   : "-")});
  }
  return t;
}

Table memory_table(const RunModel& m) {
  Table t{.id = "memory", .title = "Memory", .head = {"", "budget", "least that would do", "most in the step shown"}};
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    if (tier == Tier::device && !m.header.has_device()) continue;
    const char* name = name_of(tier);
    std::uint64_t most = 0;
    if (m.shown)
      for (const MemoryLine& sample : m.shown->events.memory)
        if (sample.tier == tier) most = std::max(most, sample.used);
    const std::uint64_t budget = m.header.bytes(fmt::format("budgets.{}", name));
    t.rows.push_back({plain(name), budget > 0 ? size_cell(fmt::format("budgets.{}", name), budget) : plain("no limit"),
                      tier == Tier::nvme
                          ? plain("-")
                          : size_cell(fmt::format("least.{}", name), m.header.bytes(fmt::format("least.{}", name))),
                      size_cell(fmt::format("memory.{}.most", name), most)});
  }
  return t;
}

Table fetches_table(const RunModel& m) {
  Table t{.id = "fetches",
          .title = "Hits and fetches",
          .says =
              "Hit: the bytes were there; late: on their way; demand: asked for only then; wasted: fetched ahead and "
              "dropped unused.",
          .head = {"", "hits", "late", "demand", "wasted"}};
  const Totals& all = m.totals;
  t.rows.push_back({plain("whole run"), count_cell("hits", all.hits), count_cell("late", all.late),
                    count_cell("demand", all.demand), count_cell("wasted", all.wasted)});
  if (!m.shown) return t;
  const StepLine& s = m.shown->line;
  t.rows.push_back({plain(fmt::format("step {}", s.step)), count_cell("step.hits", s.hits),
                    count_cell("step.late", s.late), count_cell("step.demand", s.demand),
                    count_cell("step.wasted", s.wasted)});
  return t;
}

Table wear_table(const RunModel& m) {
  Table t{.id = "wear",
          .title = "NVMe wear",
          .says = "Drives are rated in bytes written; 600 TB per TB is usual for consumer drives (look up yours).",
          .head = {"", "written"}};
  const std::uint64_t by_steps = m.totals.links[static_cast<std::size_t>(Link::nvme_write)].bytes;
  t.rows.push_back({plain("by steps"), size_cell("wear.steps", by_steps)});
  t.rows.push_back(
      {plain(fmt::format("by {} commits", m.totals.commits)), size_cell("wear.commits", m.totals.commit_bytes)});
  const std::uint64_t whole = by_steps + m.totals.commit_bytes;
  t.rows.push_back({plain("together"), size_cell("wear.bytes", whole)});
  if (m.totals.steps == 0 || whole == 0) return t;
  const double a_step = static_cast<double>(whole) / static_cast<double>(m.totals.steps);
  t.rows.push_back({plain("a step, commits included"), plain(format_size(static_cast<std::uint64_t>(a_step)))});
  t.rows.push_back({plain("steps for a drive of 1 TB (600 TB)"), plain(fmt::format("{:.3g}", 600e12 / a_step))});
  return t;
}

Table outlook_table(const RunModel& m) {
  Table t{.id = "outlook",
          .title = "What a change would do",
          .says = "One setting changed, by the planner's bytes for it and what this step waited for.",
          .head = {"", "more memory", "a step", "saves", "NVMe read", "NVMe write"}};
  if (m.header.has_device()) t.head.insert(t.head.end(), {"to device", "from device"});
  for (const Remedy& r : remedies(m)) {
    const double tokens = r.what.change == "accumulate" ? 2 : 1;
    std::vector<Cell> row{plain(fmt::format("--{} {}", r.what.change, r.what.value)),
                          plain(r.what.more_bytes > 0 ? format_size(r.what.more_bytes) : "-"),
                          plain(time_text(r.step_s) + (tokens > 1 ? " (2 × tokens)" : "")),
                          plain(r.saves_s > 0 ? time_text(r.saves_s) : "nothing")};
    for (std::size_t i = 0; i < (m.header.has_device() ? 4 : 2); ++i)
      row.push_back(plain(format_size(r.what.link_bytes[i])));
    t.rows.push_back(std::move(row));
  }
  return t;
}

std::vector<Table> rank_tables(const std::vector<RunModel>& ranks) {
  if (ranks.size() < 2) return {};
  const RankTable all = compare_ranks(ranks);
  Table t{.id = "ranks",
          .title = "Ranks",
          .says = fmt::format("Rank {} is slowest; it takes {:.1f} % longer than the fastest. {}", all.slowest,
                              100 * all.spread, all.missing),
          .head = {"", "a step", "computation", "updates", "waits", "waited for others", "came last"}};
  for (const RankRow& r : all.ranks)
    t.rows.push_back({plain(fmt::format("rank {}", r.rank)),
                      {time_text(r.step_s), fmt::format("rank.{}.wall_s", r.rank), fmt::format("{:.9f}", r.step_s)},
                      plain(time_text(r.compute_s)),
                      plain(time_text(r.update_s)),
                      plain(time_text(r.wait_s)),
                      plain(all.missing.empty() ? time_text(r.waited_for_others_s) : "-"),
                      plain(all.missing.empty() ? fmt::format("{} times", r.last_in_collectives) : "-")});
  Table c{
      .id = "skew",
      .title = "Skew by collective",
      .says = "The rank that spends least time in a collective came last; the others' time beyond that is their wait.",
      .head = {"", "count", "without waiting", "waited, all ranks", "worst wait", "last most often"}};
  for (const CollectiveRow& r : all.collectives)
    c.rows.push_back({plain(r.name.empty() ? "collective" : r.name), plain(fmt::format("{}", r.count)),
                      plain(time_text(r.least_s)), plain(time_text(r.waited_s)), plain(time_text(r.most_skew_s)),
                      plain(fmt::format("rank {}", r.last_rank))});
  std::vector<Table> out{std::move(t)};
  if (!c.rows.empty()) out.push_back(std::move(c));
  return out;
}

std::vector<std::string> warnings(const Report& report) {
  std::vector<std::string> out = report.advice.more;
  for (const RunModel& rank : report.ranks) {
    const std::string whose = report.ranks.size() > 1 ? fmt::format("Rank {}: ", rank.rank) : "";
    for (const std::string& text : rank.facts.missing()) out.push_back(whose + text);
    if (rank.shown && rank.shown->line.events_lost > 0)
      out.push_back(fmt::format("{}{} events of step {} are not in the record; sums of its events are too small.",
                                whose, rank.shown->line.events_lost, rank.shown->line.step));
    if (rank.shown && rank.shown->line.clock_error_ns > 0)
      out.push_back(fmt::format("{}the device's lanes may lie wrong by {} against the others.", whose,
                                time_text(seconds(rank.shown->line.clock_error_ns))));
    for (const std::string& text : rank.notes) out.push_back(whose + text);
    if (rank.more_notes > 0) out.push_back(fmt::format("{}{} more notes are in the record.", whose, rank.more_notes));
  }
  return out;
}

}  // namespace transload::report
