#include "train/summary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "train/forecast.h"
#include "train/run_header.h"

namespace transload {

using Json = nlohmann::json;

namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The last of a growing list: medians stay cheap in a long run and follow what the run does now.
constexpr std::size_t kWindow = 256;
void push_window(std::vector<double>& values, double v) {
  if (values.size() == kWindow) values.erase(values.begin());
  values.push_back(v);
}

double rate_of(const Rates& rates, Link link) {
  switch (link) {
    case Link::nvme_read:
      return rates.nvme_read;
    case Link::nvme_write:
      return rates.nvme_write;
    case Link::host_to_device:
      return rates.host_to_device;
    case Link::device_to_host:
      return rates.device_to_host;
  }
  return 0;
}

Json finite_or_null(double v) { return std::isfinite(v) ? Json(v) : Json(nullptr); }

Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(finite_or_null(v));
  return out;
}

Json tier_json(std::uint64_t budget, std::uint64_t arena, std::uint64_t least, std::uint64_t peak) {
  return {{"budget", budget}, {"taken", arena}, {"least", least}, {"peak", peak}};
}

}  // namespace

Summary::Summary(const TrainOptions& options, const Prepared& prepared, const Rates& rates, std::uint64_t first_step)
    : options_(options), prepared_(prepared), rates_(rates), first_step_(first_step) {}

void Summary::add(const StepSample& sample) {
  losses_.push_back(sample.loss);
  norms_.push_back(sample.norm);
  total_s_ += sample.seconds;
  if (sample.skipped) ++skipped_;
  push_window(sample.planned ? steady_s_ : other_s_, sample.seconds);
  if (!sample.planned) return;
  push_window(compute_s_, sample.compute_s);
  push_window(update_s_, sample.update_s);
}

double Summary::step_s_median() const { return median(steady_s_.empty() ? other_s_ : steady_s_); }

StepTime Summary::limit() const {
  const double compute = median(compute_s_), forward = compute * forward_share(options_.shape);
  return predict_step(plan_input(prepared_, prepared_.code.step, rates_), prepared_.plan.plan, forward,
                      compute - forward, median(update_s_));
}

double Summary::fraction_of_limit() {
  if (steady_s_.empty()) return 0;
  if (std::has_single_bit(steady_s_.size()) && steady_s_.size() < kWindow) limit_s_ = limit().lower_bound_s;
  return limit_s_ / median(steady_s_);
}

namespace {

Json link_json(const LinkCounters& counters, const Plan& plan, Link link, std::uint64_t steps, double rate) {
  const auto i = static_cast<std::size_t>(link);
  return {{"bytes", counters.bytes},
          {"transfers", counters.transfers},
          {"busy_s", static_cast<double>(counters.busy_ns) * 1e-9},
          {"bandwidth", counters.busy_ns == 0
                            ? 0.0
                            : static_cast<double>(counters.bytes) / (static_cast<double>(counters.busy_ns) * 1e-9)},
          {"measured_rate", rate},
          {"step_bytes", steps == 0 ? 0.0 : static_cast<double>(counters.bytes) / static_cast<double>(steps)},
          {"planned_step_bytes", plan.bytes[i]},
          {"least_bytes", plan.lower_bound[i]}};
}

Json store_json(const std::optional<Store::Facts>& store) {
  if (!store) return nullptr;
  return {{"io_path", store->io_path},         {"io_reason", store->io_reason},
          {"direct", store->direct},           {"direct_reason", store->direct_reason},
          {"file_system", store->file_system}, {"bytes_on_disk", store->bytes_on_disk},
          {"bytes_read", store->bytes_read},   {"bytes_written", store->bytes_written}};
}

}  // namespace

std::string Summary::to_json(const EngineCounters& counters, const std::optional<Store::Facts>& store, bool interrupted,
                             std::uint64_t steps_seen, const Accelerator* accelerator) const {
  const RunPlan& plan = prepared_.plan;
  const StepShape& shape = options_.shape;
  const double tokens = static_cast<double>(shape.samples_a_step() * shape.length);
  const double step_s = step_s_median();
  const StepTime bound = limit();
  Json links, evaluations = Json::array();
  for (int i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    links[transload::name_of(link)] =
        link_json(counters.link[i], plan.plan, link, losses_.size(), rate_of(rates_, link));
  }
  for (const auto& [step, loss] : evaluations_) evaluations.push_back({{"step", step}, {"loss", finite_or_null(loss)}});
  Json out = {{"model", options_.model},
              {"parameters", plan.parameters},
              {"trainable", plan.trainable},
              {"chunk_size", plan.chunk_size},
              {"chunks", plan.chunks},
              {"updates", {{"chunks", plan.updated_chunks}, {"device", plan.device_updates}}},
              {"first_step", first_step_},
              {"steps", losses_.size()},
              {"steps_seen", steps_seen},
              {"interrupted", interrupted},
              {"losses", numbers(losses_)},
              {"grad_norms", numbers(norms_)},
              {"evaluations", evaluations},
              {"skipped_steps", skipped_},
              {"total_s", total_s_},
              {"step_s_median", step_s},
              {"tokens_per_step", tokens},
              {"tokens_per_s", step_s > 0 ? tokens / step_s : 0},
              {"lower_bound_s", bound.lower_bound_s},
              {"plain_bound_s", bound.plain_bound_s},
              {"predicted_step_s", bound.step_s},
              {"fraction_of_limit", steady_s_.empty() ? 0.0 : bound.lower_bound_s / step_s},
              {"binds", bound.binds},
              {"compute_s", {{"forward", bound.forward_s}, {"backward", bound.backward_s}, {"update", bound.update_s}}},
              {"tiers",
               {{"host", tier_json(options_.host_memory, plan.budgets.host_bytes, plan.least_host_bytes,
                                   counters.peak_bytes[1])}}},
              {"links", links},
              {"nvme_duplex_rate", rates_.nvme_duplex},
              {"memory_rate", rates_.memory},
              {"peak_resident_bytes", peak_resident_bytes()},
              {"nvme_bytes_written", store ? store->bytes_written : 0},
              {"store", store_json(store)},
              {"gpu", gpu_json(accelerator)},
              {"deviations", counters.deviations},
              {"hits", counters.hits},
              {"late", counters.late},
              {"demand", counters.demand},
              {"wasted", counters.wasted},
              {"wait_s", static_cast<double>(counters.wait_ns) * 1e-9},
              {"relocated_bytes", counters.relocated_bytes}};
  if (plan.budgets.device_bytes > 0)
    out["tiers"]["device"] =
        tier_json(options_.device_memory, plan.budgets.device_bytes, plan.least_device_bytes, counters.peak_bytes[0]);
  return out.dump(2) + "\n";
}

}  // namespace transload
