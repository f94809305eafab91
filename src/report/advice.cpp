#include "report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/size.h"

namespace transload::report {

namespace {

constexpr double kWorthSaying = 0.03;  // of the step
constexpr double kMost = 0.6;          // the smallest change that saves this part of what the best one does

double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// Settings that can help against a cause, the nearest first.
std::vector<std::string_view> changes_against(Part cause) {
  switch (cause) {
    case Part::nvme_read:
    case Part::nvme_write:
    case Part::host_room:
    case Part::verdict:
      return {"host-memory", "device-memory", "accumulate"};
    case Part::host_to_device:
    case Part::device_to_host:
    case Part::device_room:
      return {"device-memory", "accumulate"};
    case Part::computation:
      return {"recompute", "host-memory", "device-memory"};
    case Part::update:
    case Part::collective:
      return {"accumulate"};
    case Part::between:
      return {};
  }
  return {};
}

/// By how much the planner says that a link's bytes change; from what moved, where it expected nothing to move.
double changed_bytes(const Header& header, const LinkTimes& links, std::size_t link, double changed) {
  const double planned = header.number(fmt::format("links.{}.planned_step_bytes", name_of(static_cast<Link>(link))));
  return planned > 0 ? links.bytes[link] * changed / planned : std::max(changed, links.bytes[link]);
}

/// Of the step that is shown, by the names of its operations.
double computed_s(const ShownStep& step, bool (*counts)(std::string_view operation)) {
  double sum = 0;
  for (const SpanLine& span : step.events.spans)
    if (span.lane == lane_of(Lane::compute) && counts(step.events.names[span.name]))
      sum += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  return sum;
}

/// What was computed again: the layers, and the logits, which are one of the three products of the head's second sweep.
double made_again(const ShownStep& step) {
  return computed_s(step, [](std::string_view operation) { return operation.ends_with("recompute"); }) +
         computed_s(step, [](std::string_view operation) { return operation == "head backward"; }) / 3;
}

/// The embeddings' gradient and updates on a device sweep parameters, once a step, however many tokens there are.
double goes_with_tokens(const ShownStep& step) {
  return computed_s(
      step, [](std::string_view operation) { return operation != "embedding backward" && operation != "update"; });
}

/// What was measured, where a change leaves it out or repeats it; else what the planner scaled the kernels' times to.
double more_compute(const RunModel& model, const WhatIf& what) {
  const bool recompute = what.change == "recompute";
  const double measured = recompute ? made_again(*model.shown) : goes_with_tokens(*model.shown);
  if ((recompute || what.change == "accumulate") && measured > 0)
    return recompute ? seconds(what.kept_ns) - measured : measured;
  return seconds(what.compute_ns) - seconds(model.outlook->forward_ns + model.outlook->backward_ns);
}

/// What the step that is shown would take, as a part of what it took; the run's steps are taken to change alike.
Remedy remedy_of(const RunModel& model, const WhatIf& what, const LinkTimes& links) {
  const double shown_s = seconds(model.shown->line.wall_ns), step_s = model.medians.wall_s;
  ChangedStep change;
  change.more_compute_s = more_compute(model, what);
  for (std::size_t i = 0; i < kLinks; ++i)
    change.bytes[i] = changed_bytes(model.header, links, i, static_cast<double>(what.link_bytes[i]));
  const double after = step_after(shown_s, links, change) * step_s / shown_s;
  // More micro-batches move no less, so there is no limit that they could be promised to pass.
  const bool accumulate = what.change == "accumulate";
  Remedy remedy{.what = what, .step_s = accumulate ? after : std::max(after, seconds(what.lower_bound_ns))};
  const double tokens = accumulate ? 2 : 1;
  remedy.saves_s = step_s - remedy.step_s / tokens;
  return remedy;
}

/// Of the changes of one setting, the smallest that does most of what can be done with it.
std::optional<Remedy> smallest_enough(const std::vector<Remedy>& all, std::string_view change, double step_s) {
  double best = kWorthSaying * step_s;
  for (const Remedy& r : all)
    if (r.what.change == change) best = std::max(best, r.saves_s * kMost);
  for (const Remedy& r : all)
    if (r.what.change == change && r.saves_s >= best) return r;
  return std::nullopt;
}

/// Against waits the nearest setting that helps at all; against computation what saves most, as waits are left then.
std::optional<Remedy> choose(const std::vector<Remedy>& all, Part cause, double step_s) {
  std::optional<Remedy> best;
  for (const std::string_view change : changes_against(cause)) {
    const std::optional<Remedy> found = smallest_enough(all, change, step_s);
    if (found && cause != Part::computation) return found;
    if (found && (!best || found->saves_s > best->saves_s)) best = found;
  }
  return best;
}

/// Without events of a step: what took most of its time by the sums of its line.
std::pair<Part, double> cause_by_sums(const Medians& m) {
  const std::pair<Part, double> parts[] = {{Part::computation, m.compute_s}, {Part::update, m.update_s}};
  const auto best = std::max_element(std::begin(parts), std::end(parts),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (m.wall_s <= 0) return {Part::between, 0};
  const double waits = m.wait_s / m.wall_s;
  const double share = best->second / m.wall_s;
  return waits > share ? std::pair(Part::host_room, waits) : std::pair(best->first, share);
}

std::string no_remedy(const RunModel& model, Part cause) {
  if (!model.outlook)
    return model.header.optimizer
               ? " More host memory moves less; the drop-in optimizer's record does not say how much."
               : " What a change would save is not in this record.";
  switch (cause) {
    case Part::computation:
      return " No change of memory that this machine could make would save much.";
    case Part::between:
      return " Larger batches, or larger chunks (--chunk-size of a new run), give each piece of work more to do.";
    case Part::collective:
      return " The table of ranks shows who is waited for.";
    default:
      return " No budget that this machine could give would change much; a faster link would.";
  }
}

void add(std::vector<std::string>& out, bool when, const std::string& text) {
  if (when) out.push_back(text);
}

std::vector<std::string> further(const RunModel& model) {
  const Totals& t = model.totals;
  std::vector<std::string> out;
  const double run_s = seconds(t.wall_ns) + t.commit_s;
  add(out, run_s > 0 && t.commit_s > 0.05 * run_s,
      fmt::format("Commits took {} of {} ({:.0f} %): --commit-every a longer time, or more steps, makes them fewer.",
                  format_duration(t.commit_s), format_duration(run_s), 100 * t.commit_s / run_s));
  add(out, t.demand > t.steps,
      fmt::format("{} blocks were fetched on demand, {:.1f} a step: nobody had asked for them before they were needed.",
                  t.demand, static_cast<double>(t.demand) / static_cast<double>(t.steps)));
  add(out, t.wasted > t.steps,
      fmt::format("{} fetches ahead were dropped unused: memory is so tight that what comes early is pushed out again.",
                  t.wasted));
  add(out, t.deviated > 0,
      fmt::format("{} of {} steps deviated from the trace, which costs time only.", t.deviated, t.steps));
  add(out, t.skipped > 0,
      fmt::format("{} of {} steps changed nothing: their gradients were not finite. A lower --learning-rate helps.",
                  t.skipped, t.steps));
  return out;
}

/// "2.0 MiB more host memory (--host-memory 3MiB)".
std::string change_text(const WhatIf& what) {
  const std::string flag = fmt::format("--{} {}", what.change, what.value);
  if (what.change == "host-memory" || what.change == "device-memory")
    return fmt::format("{} more {} memory ({})", format_size(what.more_bytes),
                       what.change == "host-memory" ? "host" : "device", flag);
  return flag;
}

}  // namespace

std::string Remedy::sentence() const {
  const std::string change = change_text(what);
  if (what.change == "accumulate")
    return fmt::format("{} would take {} for twice the tokens: it saves {} for as many as a step has now", change,
                       format_duration(step_s), format_duration(saves_s));
  return fmt::format("{} would save {} a step", change, format_duration(saves_s));
}

std::vector<Remedy> remedies(const RunModel& model) {
  std::vector<Remedy> out;
  if (!model.outlook || !model.shown || model.shown->line.wall_ns == 0) return out;
  const Attribution attribution = attribute(*model.shown);
  const LinkTimes links = link_times(*model.shown, attribution);
  for (const WhatIf& what : model.outlook->what_if) out.push_back(remedy_of(model, what, links));
  return out;
}

Advice advise(const RunModel& model) {
  Advice advice;
  advice.more = further(model);
  if (model.totals.steps == 0) {
    advice.sentence = "No step is in this record, so nothing can be said about what holds it back.";
    return advice;
  }
  advice.step_s = model.medians.wall_s;
  if (model.shown && !model.shown->events.spans.empty()) {
    const Attribution parts = attribute(*model.shown);
    advice.cause = parts.cause();
    advice.share = parts.share(advice.cause);
  } else {
    std::tie(advice.cause, advice.share) = cause_by_sums(model.medians);
  }
  const std::vector<Remedy> all = remedies(model);
  advice.remedy = choose(all, advice.cause, advice.step_s);
  advice.sentence = fmt::format("The step is bound by {}: {:.0f} % of {}.", title_of(advice.cause), 100 * advice.share,
                                format_duration(advice.step_s));
  advice.sentence += advice.remedy ? " " + advice.remedy->sentence() + "." : no_remedy(model, advice.cause);
  return advice;
}

}  // namespace transload::report
