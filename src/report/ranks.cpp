#include "report/ranks.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

namespace transload::report {

namespace {

/// All that a rank did at once for one chunk: the exchange, and what its owner alone does beside it.
struct Collective {
  std::string_view name;
  std::int32_t index = -1;
  double seconds = 0;
  bool same_as(const Collective& other) const { return name == other.name && index == other.index; }
};

std::vector<Collective> collectives_of(const RunModel& model) {
  std::vector<const SpanLine*> spans;
  for (const SpanLine& span : model.shown->events.spans)
    if (span.lane == kCollectiveLane) spans.push_back(&span);
  std::sort(spans.begin(), spans.end(), [](const SpanLine* a, const SpanLine* b) { return a->begin_ns < b->begin_ns; });
  std::vector<Collective> out;
  for (const SpanLine* span : spans) {
    const Collective one{model.shown->events.names[span->name], span->index,
                         static_cast<double>(span->end_ns - span->begin_ns) * 1e-9};
    if (one.index >= 0 && !out.empty() && out.back().same_as(one))
      out.back().seconds += one.seconds;
    else
      out.push_back(one);
  }
  return out;
}

/// Why they cannot be set side by side; empty where they can.
std::string hindrance(const std::vector<RunModel>& ranks, const std::vector<std::vector<Collective>>& spans) {
  for (const RunModel& rank : ranks)
    if (rank.shown->line.step != ranks.front().shown->line.step)
      return "The ranks' records have events of different steps.";
  for (const auto& list : spans)
    if (!std::equal(list.begin(), list.end(), spans.front().begin(), spans.front().end(),
                    [](const Collective& a, const Collective& b) { return a.same_as(b); }))
      return "The ranks' records do not have the same collectives.";
  return spans.front().empty() ? "The records hold no collectives." : "";
}

void add_collectives(const std::vector<std::vector<Collective>>& spans, RankTable& table) {
  std::map<std::string, CollectiveRow> rows;
  std::map<std::string, std::vector<std::uint64_t>> last;
  for (std::size_t i = 0; i < spans.front().size(); ++i) {
    std::size_t latest = 0;
    for (std::size_t r = 1; r < spans.size(); ++r)
      if (spans[r][i].seconds < spans[latest][i].seconds) latest = r;
    const double least = spans[latest][i].seconds;
    const std::string name(spans.front()[i].name);
    CollectiveRow& row = rows[name];
    row.name = name;
    ++row.count;
    row.least_s += least;
    for (std::size_t r = 0; r < spans.size(); ++r) {
      const double waited = spans[r][i].seconds - least;
      table.ranks[r].waited_for_others_s += waited;
      row.waited_s += waited;
      row.most_skew_s = std::max(row.most_skew_s, waited);
    }
    ++table.ranks[latest].last_in_collectives;
    last[name].resize(spans.size());
    ++last[name][latest];
  }
  for (auto& [name, row] : rows) {
    const auto& counts = last[name];
    row.last_rank = static_cast<int>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    table.collectives.push_back(row);
  }
}

}  // namespace

RankTable compare_ranks(const std::vector<RunModel>& ranks) {
  RankTable table;
  for (const RunModel& model : ranks)
    table.ranks.push_back({.rank = model.rank,
                           .step_s = model.medians.wall_s,
                           .compute_s = model.medians.compute_s,
                           .update_s = model.medians.update_s,
                           .wait_s = model.medians.wait_s});
  const auto [fastest, slowest] = std::minmax_element(
      table.ranks.begin(), table.ranks.end(), [](const RankRow& a, const RankRow& b) { return a.step_s < b.step_s; });
  table.slowest = slowest->rank;
  table.spread = fastest->step_s > 0 ? slowest->step_s / fastest->step_s - 1 : 0;
  if (std::any_of(ranks.begin(), ranks.end(), [](const RunModel& m) { return !m.shown; })) {
    table.missing = "Not every rank's record has a step with events.";
    return table;
  }
  std::vector<std::vector<Collective>> spans;
  for (const RunModel& model : ranks) spans.push_back(collectives_of(model));
  table.missing = hindrance(ranks, spans);
  if (table.missing.empty()) add_collectives(spans, table);
  return table;
}

}  // namespace transload::report
