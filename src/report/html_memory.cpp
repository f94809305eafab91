#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/size.h"
#include "report/html_plots.h"
#include "report/svg.h"

namespace transload::report {

namespace {

constexpr std::size_t kColumns = 1000;  // more samples than these are joined: of each column the fullest

/// The samples of a tier, at most one a column of the plot.
std::vector<MemoryLine> samples_of(const ShownStep& step, Tier tier) {
  std::vector<MemoryLine> out;
  const double wall = std::max(1.0, static_cast<double>(step.line.wall_ns));
  std::size_t column = kColumns;
  for (const MemoryLine& sample : step.events.memory) {
    if (sample.tier != tier) continue;
    const auto here = static_cast<std::size_t>(std::clamp(static_cast<double>(sample.at_ns) / wall, 0.0, 1.0) *
                                               static_cast<double>(kColumns - 1));
    if (!out.empty() && here == column) {
      if (sample.used > out.back().used) out.back() = sample;
    } else {
      out.push_back(sample);
    }
    column = here;
  }
  return out;
}

class MemoryPlot {
 public:
  MemoryPlot(const std::vector<MemoryLine>& samples, std::uint64_t wall_ns, std::uint64_t top)
      : samples_(samples),
        wall_ns_(static_cast<double>(std::max<std::uint64_t>(1, wall_ns))),
        top_(static_cast<double>(top)) {}

  /// Uses from below; the area between the sum up to `use` and the one below it, in stairs.
  std::string area(int use) const {
    std::string up, down;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const double x = x_of(samples_[i].at_ns),
                   next = i + 1 < samples_.size() ? x_of(samples_[i + 1].at_ns) : RectanglePath::kUnits;
      fmt::format_to(std::back_inserter(up), "{}{:.0f} {:.1f}H{:.0f}", i == 0 ? "M" : "L", x,
                     y_of(samples_[i], use + 1), next);
      down = fmt::format("L{:.0f} {:.1f}H{:.0f}", next, y_of(samples_[i], use), x) + down;
    }
    return up + down + "z";
  }
  bool holds(int use) const {
    return std::any_of(samples_.begin(), samples_.end(),
                       [&](const MemoryLine& s) { return s.bytes[static_cast<std::size_t>(use)] > 0; });
  }
  double y_of_bytes(double bytes) const { return kPlotHeight * (1 - bytes / top_); }

 private:
  double x_of(std::int64_t at) const {
    return std::clamp(static_cast<double>(at) / wall_ns_, 0.0, 1.0) * static_cast<double>(RectanglePath::kUnits);
  }
  double y_of(const MemoryLine& sample, int uses) const {
    double sum = 0;
    for (int use = 0; use < uses; ++use) sum += static_cast<double>(sample.bytes[static_cast<std::size_t>(use)]);
    return y_of_bytes(sum);
  }
  const std::vector<MemoryLine>& samples_;
  double wall_ns_, top_;
};

std::string readable(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string tier_plot(const RunModel& model, Tier tier) {
  const std::vector<MemoryLine> samples = samples_of(*model.shown, tier);
  if (samples.empty()) return "";
  const std::uint64_t budget = model.header.bytes(fmt::format("budgets.{}", name_of(tier)));
  std::uint64_t top = budget;
  for (const MemoryLine& sample : samples) top = std::max(top, sample.used);
  top += top / 20 + 1;
  const MemoryPlot drawing(samples, model.shown->line.wall_ns, top);
  std::string inside;
  std::vector<LegendEntry> entries;
  for (int use = 0; use < kMemoryUses; ++use) {
    if (!drawing.holds(use)) continue;
    const std::string name = name_of(static_cast<MemoryKind>(use));
    inside +=
        fmt::format("<path class=\"m-{}\" d=\"{}\"><title>{}</title></path>", name, drawing.area(use), readable(name));
    entries.push_back({"m-" + name, readable(name)});
  }
  if (budget > 0) {
    inside += fmt::format("<path class=\"budget\" d=\"M0 {:.1f}H{}\"><title>budget: {}</title></path>",
                          drawing.y_of_bytes(static_cast<double>(budget)), RectanglePath::kUnits, format_size(budget));
    entries.push_back({"k-budget", fmt::format("budget {}", format_size(budget))});
  }
  return fmt::format("<h3>{}</h3>{}{}", name_of(tier),
                     plot(fmt::format("{} memory over the step", name_of(tier)), inside, size_labels(top),
                          time_labels(static_cast<double>(model.shown->line.wall_ns) * 1e-9)),
                     legend(entries));
}

}  // namespace

std::string memory_plots(const RunModel& model) {
  if (!model.shown) return "";
  std::string out;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) out += tier_plot(model, tier);
  return out;
}

}  // namespace transload::report
