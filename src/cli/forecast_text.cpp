#include "cli/forecast_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size.h"

namespace transload::cli {
namespace {

using Json = nlohmann::json;

const char* name_of_tier(int tier) { return tier == 0 ? "device" : "host"; }

std::uint64_t of(const TierPeak& peak, MemoryKind use) { return peak.most[static_cast<std::size_t>(use)]; }

bool shown(const RunPlan& plan, int tier) { return tier == 1 || plan.budgets.device_bytes > 0; }

/// The plan counts blocks as they come when they are needed; the engine fetches ahead into what is left.
std::string memory_table(const RunPlan& plan, const Forecast& forecast) {
  const bool device = shown(plan, 0);
  std::string text = fmt::format("  {:<18}{:>14}{}\n", "at most in use", "host", device ? "        device" : "");
  const auto row = [&](const char* name, std::uint64_t host, std::uint64_t on_device) {
    if (host == 0 && on_device == 0) return;
    text += fmt::format("  {:<18}{:>14}", name, format_size(host));
    text += device ? fmt::format("{:>14}\n", format_size(on_device)) : "\n";
  };
  for (int use = 0; use < kMemoryUses; ++use) {
    const auto kind = static_cast<MemoryKind>(use);
    if (kind == MemoryKind::in_flight) continue;
    row(transload::name_of(kind), of(forecast.peaks[1], kind), of(forecast.peaks[0], kind));
  }
  row("staging", forecast.in_flight_bytes[1], forecast.in_flight_bytes[0]);
  row("ranks' buffers", forecast.buffer_bytes[1], forecast.buffer_bytes[0]);
  row("in all", forecast.used_bytes[1] + forecast.buffer_bytes[1], forecast.used_bytes[0] + forecast.buffer_bytes[0]);
  if (plan.store_bytes > 0)
    text += fmt::format("  The store's {} hold {} of second slots for commits.\n", format_size(plan.store_bytes),
                        format_size(forecast.second_slot_bytes));
  return text;
}

std::string time_text(const Forecast& f, const MachineRates& rates) {
  if (!f.timed)
    return "How long a step takes is not known: nothing was measured for it yet. Say --probe to measure now (seconds), "
           "or name a --box.\n";
  std::string text =
      fmt::format("A step takes {}, {:.0f} tokens/s{}; it cannot be shorter than {} ({} binds).\n",
                  format_duration(f.time.step_s), f.tokens_per_s(), f.time.collectives_s > 0 ? " on this rank" : "",
                  format_duration(f.time.lower_bound_s), f.time.binds);
  text += fmt::format("  computation: forward {}, backward {}, update {}\n", format_duration(f.time.forward_s),
                      format_duration(f.time.backward_s), format_duration(f.time.update_s));
  if (f.time.collectives_s > 0)
    text += fmt::format("  collectives: {}, gathers of {} of weights {}, sums of {} of gradients {}\n",
                        format_duration(f.time.collectives_s),
                        format_size(static_cast<std::uint64_t>(f.gathered_bytes)), format_duration(f.gather_s),
                        format_size(static_cast<std::uint64_t>(f.scattered_bytes)), format_duration(f.scatter_s));
  for (int i = 0; i < kLinks; ++i)
    if (f.hidden_from[i] > 0)
      text += fmt::format("  {} is no longer than computation from {:.0f} tokens a step on (these have {:.0f})\n",
                          transload::name_of(static_cast<Link>(i)), f.hidden_from[i], f.tokens);
  return text + fmt::format("  Rates: {}.\n", rates.source);
}

std::string seconds_cell(const WhatIf& cell) {
  if (!cell.fits) return "does not fit";
  return cell.step_s > 0 ? format_duration(cell.step_s) : format_size(cell.nvme_bytes);
}

constexpr double kAsFast = 0.999;

std::string candidate_text(const Candidate& c, bool splits) {
  return fmt::format("{}--chunk-size {} --recompute {} --batch-size {}",
                     splits ? fmt::format("--device-memory {} --host-memory {} ", c.device_memory, c.host_memory) : "",
                     c.chunk_bytes, c.recompute == Recompute::layer ? "layer" : "none", c.batch);
}

/// What of it there is more of a token than with the best: of what binds it, else of computation.
std::string why_behind(const Candidate& next, const Candidate& best) {
  const auto times = [&](double a, double b) { return b > 0 ? a / next.tokens / (b / best.tokens) : 0; };
  for (int i = 0; i < kLinks; ++i) {
    const double more = times(static_cast<double>(next.link_bytes[i]), static_cast<double>(best.link_bytes[i]));
    if (next.binds != transload::name_of(static_cast<Link>(i))) continue;
    if (best.link_bytes[i] == 0 && next.link_bytes[i] > 0) return ", which the first does not use";
    return more > 1.005 ? fmt::format(", over which it moves {:.2f} x the bytes a token", more) : "";
  }
  const double more = times(next.computed_s, best.computed_s);
  return more > 1.005 ? fmt::format("; it computes {:.2f} x as long a token", more) : "";
}

Json bytes_by_use(const Forecast& forecast, int tier) {
  Json json;
  for (int use = 0; use < kMemoryUses; ++use) {
    const auto kind = static_cast<MemoryKind>(use);
    json[transload::name_of(kind)] =
        kind == MemoryKind::in_flight ? forecast.in_flight_bytes[tier] : of(forecast.peaks[tier], kind);
  }
  return json;
}

}  // namespace

std::string forecast_text(const RunPlan& plan, const Forecast& forecast, const MachineRates& rates) {
  return memory_table(plan, forecast) + time_text(forecast, rates);
}

std::string commit_text(const CommitCycle& cycle, const TrainOptions& options, const Plan& plan) {
  constexpr auto kRead = static_cast<std::size_t>(Link::nvme_read), kWrite = static_cast<std::size_t>(Link::nvme_write);
  if (cycle.commit.bytes[kWrite] == 0) return "";
  const auto pair = [](const LinkBytes& moved) {
    return fmt::format("{} in and {} out", format_size(moved.bytes[kRead]), format_size(moved.bytes[kWrite]));
  };
  std::string text = fmt::format("A commit moves {} of NVMe, the first step after it {}, the second {}.\n",
                                 pair(cycle.commit), pair(cycle.first), pair(cycle.second));
  const std::uint64_t steps = options.commit_every.steps;
  if (steps == 0) return text;
  const auto a_step = [&](std::size_t link) {
    return format_size(static_cast<std::uint64_t>(cycle.a_step(static_cast<Link>(link), steps, plan.bytes[link])));
  };
  return text +
         fmt::format("With --commit-every {} that is {} in and {} out a step.\n", steps, a_step(kRead), a_step(kWrite));
}

std::string capacity_text(const Capacity& c) {
  return fmt::format(
      "With these budgets and this chunk size fit, each alone: --batch-size {}, --sequence-length {}, or {} layers of "
      "this width ({:.2f} G parameters).\n",
      c.batch, c.length, c.layers, static_cast<double>(c.parameters) / 1e9);
}

std::string what_if_text(const std::vector<WhatIf>& table, std::uint64_t host_memory) {
  if (table.empty()) return "";
  const bool timed = std::any_of(table.begin(), table.end(), [](const WhatIf& c) { return c.step_s > 0; });
  std::string text = fmt::format("  {:<24}", timed ? "what if: a step with" : "what if: NVMe a step with");
  for (std::size_t i = 0; i < table.size() && table[i].memory_factor == table[0].memory_factor; ++i)
    text += fmt::format("{:>16}", fmt::format("{:g} x drive", table[i].nvme_factor));
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (i == 0 || table[i].memory_factor != table[i - 1].memory_factor) {
      const double bytes = static_cast<double>(host_memory) * table[i].memory_factor;
      text += fmt::format("\n  {:<24}", format_size(static_cast<std::uint64_t>(bytes)) + " of host memory");
    }
    text += fmt::format("{:>16}", seconds_cell(table[i]));
  }
  return text + "\n";
}

std::string search_text(const Search& search) {
  const std::vector<Candidate>& candidates = search.candidates;
  if (candidates.empty() || !candidates[0].fits) return "Search: nothing of the grid fits.\n";
  const Candidate& best = candidates[0];
  const bool splits = std::any_of(candidates.begin(), candidates.end(),
                                  [&](const Candidate& c) { return c.device_memory != best.device_memory; });
  std::string text = fmt::format("Search: {} gives the most, {:.0f} tokens/s ({} binds); {} settings were tried.\n",
                                 candidate_text(best, splits), best.tokens_per_s, best.binds, candidates.size());
  const auto slower = std::find_if(candidates.begin() + 1, candidates.end(),
                                   [&](const Candidate& c) { return c.tokens_per_s < kAsFast * best.tokens_per_s; });
  if (const auto ties = slower - candidates.begin() - 1; ties > 0)
    text += fmt::format("  {} more {} as fast.\n", ties, ties == 1 ? "is" : "are");
  if (slower != candidates.end() && slower->fits)
    text += fmt::format("  Next: {} with {:.0f} tokens/s: {:.1f} % slower a token, held back by {}{}.\n",
                        candidate_text(*slower, splits), slower->tokens_per_s,
                        100 * (best.tokens_per_s / slower->tokens_per_s - 1), slower->binds, why_behind(*slower, best));
  if (search.least_host_bytes < best.host_memory)
    text += fmt::format("  Of its host memory {} suffice for {:.0f} % of these tokens/s.\n",
                        format_size(search.least_host_bytes), 100 * Search::kKept);
  return text;
}

Json forecast_json(const RunPlan& plan, const TrainOptions& options, const Forecast& f, const CommitCycle& cycle,
                   const MachineRates& rates) {
  Json tiers, links;
  for (int tier = 0; tier < 2; ++tier)
    if (shown(plan, tier))
      tiers[name_of_tier(tier)] = {{"budget", tier == 0 ? options.device_memory : options.host_memory},
                                   {"taken", tier == 0 ? plan.budgets.device_bytes : plan.budgets.host_bytes},
                                   {"least", tier == 0 ? plan.least_device_bytes : plan.least_host_bytes},
                                   {"peak", f.used_bytes[tier]},
                                   {"buffers", f.buffer_bytes[tier]},
                                   {"bytes", bytes_by_use(f, tier)}};
  for (int i = 0; i < kLinks; ++i)
    links[transload::name_of(static_cast<Link>(i))] = {
        {"planned_step_bytes", plan.plan.bytes[i]},   {"least_bytes", plan.plan.lower_bound[i]},
        {"commit_bytes", cycle.commit.bytes[i]},      {"first_step_bytes", cycle.first.bytes[i]},
        {"second_step_bytes", cycle.second.bytes[i]}, {"hidden_from_tokens", f.hidden_from[i]}};
  if (const std::uint64_t steps = options.commit_every.steps; steps > 0)
    for (int i = 0; i < kLinks; ++i) {
      const auto link = static_cast<Link>(i);
      links[transload::name_of(link)]["step_bytes_with_commits"] = cycle.a_step(link, steps, plan.plan.bytes[i]);
    }
  Json time;
  if (f.timed)
    time = {{"step_s", f.time.step_s},
            {"lower_bound_s", f.time.lower_bound_s},
            {"plain_bound_s", f.time.plain_bound_s},
            {"binds", f.time.binds},
            {"forward_s", f.time.forward_s},
            {"backward_s", f.time.backward_s},
            {"update_s", f.time.update_s},
            {"tokens_per_s", f.tokens_per_s()},
            {"collectives_s", f.time.collectives_s},
            {"gather_s", f.gather_s},
            {"scatter_s", f.scatter_s}};
  return {{"model", options.model},
          {"parameters", plan.parameters},
          {"trainable", plan.trainable},
          {"chunk_size", plan.chunk_size},
          {"chunks", plan.chunks},
          {"tokens_per_step", f.tokens},
          {"tiers", tiers},
          {"links", links},
          {"store", {{"bytes", plan.store_bytes}, {"second_slot_bytes", f.second_slot_bytes}}},
          {"time", time},
          {"rates",
           {{"source", rates.source},
            {"products", rates.products},
            {"updates", rates.updates},
            {"nvme_read", rates.links.nvme_read},
            {"nvme_write", rates.links.nvme_write},
            {"nvme_duplex", rates.links.nvme_duplex},
            {"host_to_device", rates.links.host_to_device},
            {"device_to_host", rates.links.device_to_host},
            {"memory", rates.links.memory},
            {"gather", rates.collectives.gather},
            {"scatter", rates.collectives.scatter}}},
          {"notes", plan.notes}};
}

Json capacity_json(const Capacity& c) {
  return {{"batch", c.batch}, {"length", c.length}, {"layers", c.layers}, {"parameters", c.parameters}};
}

Json what_if_json(const std::vector<WhatIf>& table) {
  Json out = Json::array();
  for (const WhatIf& c : table)
    out.push_back({{"host_memory_factor", c.memory_factor},
                   {"nvme_factor", c.nvme_factor},
                   {"fits", c.fits},
                   {"step_s", c.step_s},
                   {"nvme_bytes", c.nvme_bytes}});
  return out;
}

Json search_json(const std::vector<Candidate>& candidates) {
  Json out = Json::array();
  for (const Candidate& c : candidates)
    out.push_back({{"chunk_size", c.chunk_bytes},
                   {"device_memory", c.device_memory},
                   {"host_memory", c.host_memory},
                   {"batch", c.batch},
                   {"accumulate", c.accumulate},
                   {"recompute", c.recompute == Recompute::layer ? "layer" : "none"},
                   {"fits", c.fits},
                   {"step_s", c.step_s},
                   {"tokens_per_s", c.tokens_per_s},
                   {"binds", c.binds}});
  return out;
}

}  // namespace transload::cli
