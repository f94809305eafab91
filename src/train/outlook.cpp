#include "train/outlook.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/size.h"

namespace transload {

using Json = nlohmann::json;

namespace {

constexpr double kMostSeconds = 2;  // of planning alternatives; a run is longer than that many times over
constexpr double kMemoryFactors[] = {1.25, 1.5, 2, 3, 4, 8};

struct Alternative {
  const char* change;
  std::string value;
  TrainOptions options;
};

std::uint64_t ns(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

/// With a budget as taken times each factor, as far as this machine has that much.
void add_memory(const char* flag, std::uint64_t taken, std::uint64_t free, const TrainOptions& options,
                std::uint64_t TrainOptions::*field, std::vector<Alternative>& out) {
  for (const double factor : kMemoryFactors) {
    const std::uint64_t grain = taken < 16 * MiB ? KiB : MiB;
    const auto bytes = round_up(static_cast<std::uint64_t>(static_cast<double>(taken) * factor), grain);
    if (bytes <= taken || bytes - taken > free) continue;
    out.push_back({flag, fmt::format("{}{}", bytes / grain, grain == KiB ? "KiB" : "MiB"), options});
    out.back().options.*field = bytes;
  }
}

std::vector<Alternative> alternatives(const TrainOptions& options, const Budgets& budgets, Accelerator* accelerator) {
  std::vector<Alternative> out;
  const std::uint64_t free = memory_limit().available_bytes;
  add_memory("host-memory", budgets.host_bytes, free, options, &TrainOptions::host_memory, out);
  if (budgets.device_bytes > 0) {
    const std::uint64_t on_gpu = accelerator == nullptr ? 0 : accelerator->facts().free_bytes;
    const std::uint64_t left = accelerator == nullptr ? free : on_gpu - std::min(on_gpu, budgets.device_bytes);
    add_memory("device-memory", budgets.device_bytes, left, options, &TrainOptions::device_memory, out);
  }
  if (options.shape.recompute == Recompute::layer) {
    out.push_back({"recompute", "none", options});
    out.back().options.shape.recompute = Recompute::none;
  }
  out.push_back({"accumulate", fmt::format("{}", 2 * options.shape.accumulate), options});
  out.back().options.shape.accumulate *= 2;
  return out;
}

/// Kernels' times go with the products that a step needs.
StepTime predict_changed(const TrainOptions& options, const StepTime& now, const Prepared& changed,
                         const TrainOptions& changed_options, const Rates& rates) {
  const ModelConfig& config = changed.plan.config;
  const double factor = step_flops(config, changed_options.shape) / step_flops(config, options.shape);
  const bool kept = changed_options.shape.recompute != options.shape.recompute;
  const double more = (now.forward_s + now.backward_s) * (factor - 1);
  const double forward = kept ? now.forward_s : now.forward_s * factor;
  const double backward = kept ? now.backward_s + more : now.backward_s * factor;
  const PlanInput input = plan_input(changed, changed.code.step, rates);
  return predict_step(input, changed.plan.plan, forward, backward, now.update_s);
}

Json links_json(const Plan& plan) {
  Json links;
  for (int i = 0; i < kLinks; ++i) links[name_of(static_cast<Link>(i))] = plan.bytes[i];
  return links;
}

std::uint64_t more_than(std::uint64_t changed, std::uint64_t now) { return changed - std::min(changed, now); }

/// What is kept instead of being computed again is stored once and loaded once. The workspace at the other end of these
/// copies is in cache: it was just computed, or is computed with next. On a GPU they take no time worth counting.
double keeping_s(const RunPlan& changed, const RunPlan& now, const Rates& rates, const Accelerator* accelerator) {
  if (accelerator != nullptr || rates.memory <= 0) return 0;
  return 2 * static_cast<double>(more_than(changed.transient_bytes, now.transient_bytes)) / rates.memory;
}

/// Nothing where it does not fit.
std::optional<Json> what_if(const Alternative& alternative, const TrainOptions& options, const Prepared& prepared,
                            const Rates& rates, const StepTime& now, Accelerator* accelerator) {
  std::optional<Prepared> changed =
      prepare_changed(alternative.options, prepared.plan.config, prepared.plan.chunk_size, accelerator);
  if (!changed) return std::nullopt;
  changed->plan.plan = make_plan(plan_input(*changed, changed->code.step, rates));
  const StepTime time = predict_changed(options, now, *changed, alternative.options, rates);
  const Budgets& budgets = changed->plan.budgets;
  const Budgets& before = prepared.plan.budgets;
  const bool keeps = alternative.options.shape.recompute != options.shape.recompute;
  return Json{{"change", alternative.change},
              {"value", alternative.value},
              {"more_bytes",
               more_than(budgets.host_bytes, before.host_bytes) + more_than(budgets.device_bytes, before.device_bytes)},
              {"compute_ns", ns(time.forward_s + time.backward_s)},
              {"kept_ns", keeps ? ns(keeping_s(changed->plan, prepared.plan, rates, accelerator)) : 0},
              {"step_ns", ns(time.step_s)},
              {"lower_bound_ns", ns(time.lower_bound_s)},
              {"links", links_json(changed->plan.plan)}};
}

/// Than the run has now, or than the point before it, which changes the same tier.
bool takes_no_more(const Json& points, const Json& point) {
  const std::string change = point["change"];
  if (change != "host-memory" && change != "device-memory") return false;
  const bool follows = !points.empty() && points.back()["change"] == change;
  const std::uint64_t before = follows ? points.back()["more_bytes"].get<std::uint64_t>() : 0;
  return point["more_bytes"].get<std::uint64_t>() <= before;
}

}  // namespace

std::string outlook_fields(const TrainOptions& options, const Prepared& prepared, const Rates& rates,
                           const StepTime& now, Accelerator* accelerator, std::uint64_t step) {
  const auto start = std::chrono::steady_clock::now();
  Json points = Json::array();
  std::string full;  // a tier that took no more than the last time: everything is in it
  for (const Alternative& alternative : alternatives(options, prepared.plan.budgets, accelerator)) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kMostSeconds) break;
    if (alternative.change == full) continue;
    std::optional<Json> point = what_if(alternative, options, prepared, rates, now, accelerator);
    if (!point) continue;
    if (takes_no_more(points, *point))
      full = alternative.change;
    else
      points.push_back(std::move(*point));
  }
  const Json fields = {{"step", step},
                       {"step_ns", ns(now.step_s)},
                       {"lower_bound_ns", ns(now.lower_bound_s)},
                       {"plain_bound_ns", ns(now.plain_bound_s)},
                       {"forward_ns", ns(now.forward_s)},
                       {"backward_ns", ns(now.backward_s)},
                       {"update_ns", ns(now.update_s)},
                       {"binds", now.binds},
                       {"what_if", points}};
  const std::string text = fields.dump();
  return text.substr(1, text.size() - 2);
}

}  // namespace transload
