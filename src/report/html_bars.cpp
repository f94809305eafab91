#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/size.h"
#include "report/attribution.h"
#include "report/html_plots.h"
#include "report/svg.h"

namespace transload::report {

namespace {

std::string bar(const std::string& name, const std::string& colour, double share, const std::string& text) {
  return fmt::format(
      "<div class=\"bar\"><span>{}</span><b><i class=\"{}\" style=\"width:{:.2f}%\"></i></b><span>{}</span></div>",
      escaped(name), colour, 100 * share, escaped(text));
}

}  // namespace

std::string parts_bar(const RunModel& model) {
  if (!model.shown || model.shown->events.spans.empty()) return "";
  const Attribution parts = attribute(*model.shown);
  if (parts.wall_ns == 0) return "";
  const double wall = static_cast<double>(parts.wall_ns);
  const double bound = model.outlook ? static_cast<double>(model.outlook->lower_bound_ns) : 0;
  const double whole = std::max(wall, bound);
  std::string inside;
  double x = 0;
  for (int p = 0; p < kParts; ++p) {
    const auto part = static_cast<Part>(p);
    const double width = static_cast<double>(parts.of(part)) / whole * RectanglePath::kUnits;
    if (width <= 0) continue;
    inside += fmt::format("<path class=\"c-{}\" d=\"M{:.1f} 0h{:.1f}v100h-{:.1f}z\"><title>{}: {}</title></path>",
                          key_of(part), x, width, width, title_of(part),
                          format_duration(static_cast<double>(parts.of(part)) * 1e-9));
    x += width;
  }
  if (bound > 0)
    inside += fmt::format("<path class=\"bound\" d=\"M{:.1f} 0v100\"><title>lower bound: {}</title></path>",
                          bound / whole * RectanglePath::kUnits, format_duration(bound * 1e-9));
  return fmt::format(
             "<svg class=\"parts\" role=\"img\" aria-label=\"where the step's time goes\" viewBox=\"0 0 {} 100\" "
             "preserveAspectRatio=\"none\">{}</svg>{}",
             RectanglePath::kUnits, inside, axis(time_labels(whole * 1e-9))) +
         (bound > 0 ? legend({{"k-bound",
                               fmt::format("lower bound {}: no schedule of this machine's kernels and links is faster",
                                           format_duration(bound * 1e-9))}})
                    : "");
}

std::string link_bars(const RunModel& model) {
  double most = 0;
  for (const double bytes : model.medians.link_bytes) most = std::max(most, bytes);
  std::string out;
  for (int i = 0; i < kLinks; ++i) {
    const char* name = name_of(static_cast<Link>(i));
    most = std::max({most, model.header.number(fmt::format("links.{}.planned_step_bytes", name)),
                     model.header.number(fmt::format("links.{}.least_bytes", name))});
  }
  if (most == 0) return "";
  for (int i = 0; i < kLinks; ++i) {
    const std::string name = name_of(static_cast<Link>(i));
    const double bytes = model.medians.link_bytes[static_cast<std::size_t>(i)];
    const double planned = model.header.number("links." + name + ".planned_step_bytes");
    const double least = model.header.number("links." + name + ".least_bytes");
    if (bytes == 0 && planned == 0 && least == 0) continue;
    std::string title = name;
    std::replace(title.begin(), title.end(), '_', ' ');
    const auto size = [](double v) { return format_size(static_cast<std::uint64_t>(v)); };
    out += "<div class=\"bars\">" + bar(title, "c-" + name, bytes / most, size(bytes));
    if (model.header.find("links." + name + ".least_bytes") != nullptr)
      out += bar("planned", "c-other", planned / most, size(planned)) +
             bar("least", "c-between", least / most, size(least));
    out += "</div>";
  }
  return out;
}

std::string step_series_plot(const RunModel& model) {
  const auto& points = model.series.points();
  if (points.size() < 2) return "";
  double most = 0;
  for (const StepSeries::Point& p : points) most = std::max(most, p.most_s);
  if (most <= 0) return "";
  std::string line, up, down;
  const auto first = static_cast<double>(points.front().first_step),
             last = static_cast<double>(points.back().last_step);
  const auto y = [&](double s) { return kPlotHeight * (1 - s / most); };
  for (const StepSeries::Point& p : points) {
    const double middle = (static_cast<double>(p.first_step) + static_cast<double>(p.last_step)) / 2;
    const double x = (middle - first) / std::max(1.0, last - first) * RectanglePath::kUnits;
    fmt::format_to(std::back_inserter(line), "{}{:.0f} {:.1f}", line.empty() ? "M" : "L", x, y(p.mean_s()));
    fmt::format_to(std::back_inserter(up), "{}{:.0f} {:.1f}", up.empty() ? "M" : "L", x, y(p.most_s));
    down = fmt::format("L{:.0f} {:.1f}", x, y(p.least_s)) + down;
  }
  std::vector<AxisLabel> left = time_labels(most), below;
  for (const double at : ticks_to(last - first, 5))
    if (at == std::floor(at)) below.push_back({at / std::max(1.0, last - first), fmt::format("{:.0f}", first + at)});
  return plot("time of each step",
              fmt::format("<path class=\"band\" d=\"{}{}z\"/><path class=\"line\" d=\"{}\"/>", up, down, line), left,
              below);
}

}  // namespace transload::report
