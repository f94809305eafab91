#include "cli/summary_text.h"

#include <fmt/format.h>

#include "base/size.h"
#include "cli/plan_text.h"

namespace transload::cli {
namespace {

using Json = nlohmann::json;

/// A number of the summary; 0 where it is not there (null stands for one that is not finite).
double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}
std::uint64_t bytes(const Json& object, const char* key) { return static_cast<std::uint64_t>(number(object, key)); }

std::string loss_text(const Json& summary) {
  const auto losses = summary.find("losses");
  if (losses == summary.end() || losses->empty()) return "No step was left to do.\n";
  const auto text = [](const Json& v) { return v.is_number() ? fmt::format("{:.4f}", v.get<double>()) : "not finite"; };
  std::string line =
      fmt::format("{} steps: loss {} -> {}", losses->size(), text(losses->front()), text(losses->back()));
  const Json evaluations = summary.value("evaluations", Json::array());
  if (!evaluations.empty()) line += fmt::format("; validation loss {}", text(evaluations.back()["loss"]));
  const std::uint64_t skipped = bytes(summary, "skipped_steps");
  if (skipped > 0) line += fmt::format("; {} steps changed nothing, their gradients were not finite", skipped);
  return line + "\n";
}

std::string speed_text(const Json& summary) {
  const double step_s = number(summary, "step_s_median");
  if (step_s <= 0) return "";
  std::string line =
      fmt::format("{:.0f} tokens/s, {} a step", number(summary, "tokens_per_s"), format_duration(step_s));
  const double bound = number(summary, "lower_bound_s");
  if (bound > 0)
    line += fmt::format("; it cannot be shorter than {} ({} binds): {:.0f} % of the limit", format_duration(bound),
                        summary.value("binds", "?"), 100 * bound / step_s);
  return line + "\n";
}

std::string tier_table(const Json& tiers) {
  std::string text = fmt::format("  {:<18}{:>14}{:>14}\n", "memory", "budget", "peak");
  for (const auto& [name, tier] : tiers.items())
    text += fmt::format("  {:<18}{:>14}{:>14}\n", name, format_size(bytes(tier, "budget")),
                        format_size(bytes(tier, "peak")));
  return text;
}

std::string link_table(const Json& links, bool device) {
  std::string text = fmt::format("  {:<18}{:>14}{:>14}{:>14}{:>14}{:>12}\n", "link", "bytes", "a step", "least a step",
                                 "bandwidth", "busy");
  for (int i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    const bool of_device = link == Link::host_to_device || link == Link::device_to_host;
    if (!links.contains(name_of(link)) || (of_device && !device)) continue;
    const Json& l = links[name_of(link)];
    text += fmt::format("  {:<18}{:>14}{:>14}{:>14}{:>14}{:>12}\n", name_of(link), format_size(bytes(l, "bytes")),
                        format_size(bytes(l, "step_bytes")), format_size(bytes(l, "least_bytes")),
                        format_rate(number(l, "bandwidth")), format_duration(number(l, "busy_s")));
  }
  return text;
}

}  // namespace

std::string summary_text(const Json& summary, const TrainOptions& options) {
  const Json tiers = summary.value("tiers", Json::object()), links = summary.value("links", Json::object());
  std::string text =
      loss_text(summary) + speed_text(summary) + tier_table(tiers) + link_table(links, tiers.contains("device"));
  text += fmt::format("Peak resident memory {}; {} written to NVMe, commits included\n",
                      format_size(bytes(summary, "peak_resident_bytes")),
                      format_size(bytes(summary, "nvme_bytes_written")));
  const std::uint64_t deviations = bytes(summary, "deviations");
  if (deviations > 0) text += fmt::format("{} accesses deviated from the trace, which cost time only\n", deviations);
  if (options.nvme_capacity == 0 || !links.contains("nvme_write")) return text;
  return text + wear_text(steps_alone(bytes(links["nvme_write"], "step_bytes"), options),
                          options.nvme.empty() ? options.run : options.nvme, number(summary, "step_s_median"),
                          options.steps);
}

}  // namespace transload::cli
