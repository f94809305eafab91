#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/size.h"
#include "report/html_plots.h"
#include "report/svg.h"

namespace transload::report {

namespace {

constexpr int kLaneHeight = 100;

/// What one colour of a lane shows.
struct Layer {
  RectanglePath path;
  std::uint64_t count = 0, ns = 0, bytes = 0;
};
/// By colour and name, in the order of the first.
using Layers = std::map<std::pair<std::string, std::string>, Layer>;

Layer& layer_of(Layers& layers, const std::string& colour, const std::string& name, std::int64_t wall) {
  return layers.try_emplace({colour, name}, Layer{RectanglePath(0, wall, kLaneHeight)}).first->second;
}

void add(Layer& layer, std::int64_t begin, std::int64_t end, std::uint64_t bytes) {
  layer.path.add(begin, end);
  ++layer.count;
  layer.ns += static_cast<std::uint64_t>(end - begin);
  layer.bytes += bytes;
}

std::string lane(const std::string& name, const Layers& layers) {
  std::string out = fmt::format(
      "<div class=\"lane\"><span>{}</span><svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" "
      "preserveAspectRatio=\"none\">",
      escaped(name), escaped(name), RectanglePath::kUnits, kLaneHeight);
  for (const auto& [key, layer] : layers) {
    const std::string moved = layer.bytes > 0 ? ", " + format_size(layer.bytes) : "";
    out += fmt::format("<path class=\"{}\" d=\"{}\"><title>{}: {} times, {} in sum{}</title></path>", key.first,
                       layer.path.d(), escaped(key.second), layer.count,
                       format_duration(static_cast<double>(layer.ns) * 1e-9), moved);
  }
  return out + "</svg></div>";
}

/// A processor's operation: forward, backward, made again, the rest.
std::string colour_of(const std::string& name) {
  if (name == "update") return "c-update";
  if (name.ends_with("recompute")) return "c-again";
  if (name.ends_with("backward")) return "c-back";
  return name.ends_with("forward") ? "c-computation" : "c-other";
}

/// Fetches that the plan did not ask for are paler; what leaves is never asked for.
Layer& link_layer(Layers& layers, const SpanLine& span, std::int64_t wall) {
  const bool fetch = span.lane == lane_of(Link::nvme_read) || span.lane == lane_of(Link::host_to_device);
  const char* name = !fetch ? "written back" : span.ahead ? "fetched ahead" : "fetched on demand";
  return layer_of(layers, fmt::format("c-{}{}", lane_name(span.lane), fetch && !span.ahead ? " now" : ""), name, wall);
}

std::string span_lane(const ShownStep& step, int lane_number, const std::string& title) {
  Layers layers;
  const auto wall = static_cast<std::int64_t>(step.line.wall_ns);
  const bool link = lane_number < kLinks;
  for (const SpanLine& span : step.events.spans) {
    if (span.lane != lane_number) continue;
    const std::string& name = step.events.names[span.name];
    if (link)
      add(link_layer(layers, span, wall), span.begin_ns, span.end_ns, span.bytes);
    else
      add(layer_of(layers, lane_number == kCollectiveLane ? "c-collective" : colour_of(name), name, wall),
          span.begin_ns, span.end_ns, 0);
  }
  return layers.empty() ? "" : lane(title, layers);
}

std::string wait_lane(const ShownStep& step, int lane_number, const std::string& title) {
  Layers layers;
  const auto wall = static_cast<std::int64_t>(step.line.wall_ns);
  for (const WaitLine& wait : step.events.waits) {
    if (wait.lane != lane_number) continue;
    std::string name = name_of(wait.cause);
    if (wait.cause == WaitCause::room || wait.cause == WaitCause::use || wait.cause == WaitCause::content)
      name += fmt::format(" ({})", name_of(wait.tier));
    add(layer_of(layers, fmt::format("w-{}", name_of(wait.cause)), name, wall), wait.begin_ns, wait.end_ns, 0);
  }
  return layers.empty() ? "" : lane(title, layers);
}

const std::pair<int, const char*> kLaneTitles[] = {{lane_of(Lane::nvme_read), "NVMe read"},
                                                   {lane_of(Lane::nvme_write), "NVMe write"},
                                                   {lane_of(Lane::host_to_device), "host to device"},
                                                   {lane_of(Lane::device_to_host), "device to host"},
                                                   {lane_of(Lane::compute), "compute"},
                                                   {lane_of(Lane::host), "updates"},
                                                   {kCollectiveLane, "collectives"}};

}  // namespace

std::string timeline_lanes(const RunModel& model) {
  if (!model.shown || model.shown->events.spans.empty()) return "";
  const ShownStep& step = *model.shown;
  std::string lanes;
  for (const auto& [number, title] : kLaneTitles) lanes += span_lane(step, number, title);
  lanes += wait_lane(step, lane_of(Lane::compute), "compute waits");
  lanes += wait_lane(step, lane_of(Lane::host), "updates wait");
  lanes += wait_lane(step, lane_of(Lane::issue), "issue waits");
  const std::string ruler = axis(time_labels(static_cast<double>(step.line.wall_ns) * 1e-9));
  std::string zoom;
  for (const int factor : {1, 4, 16})
    zoom += fmt::format(
        "<input type=\"radio\" name=\"zoom{0}\" id=\"zoom{0}-{1}\"{2}><label for=\"zoom{0}-{1}\">{1}&times;</label>",
        model.rank, factor, factor == 1 ? " checked" : "");
  return fmt::format(
             "<div class=\"timeline\">{}<div class=\"scroll\"><div class=\"lanes\">{}<div "
             "class=\"lane\"><span></span>{}</div>"
             "</div></div></div>",
             zoom, lanes, ruler) +
         legend({{"c-computation", "forward"},
                 {"c-back", "backward"},
                 {"c-again", "made again"},
                 {"c-update", "update"},
                 {"c-nvme_read", "NVMe read"},
                 {"c-nvme_write", "NVMe write"},
                 {"c-host_to_device", "to device"},
                 {"c-device_to_host", "from device"},
                 {"w-content", "waits: content on its way"},
                 {"w-room", "room"},
                 {"w-use", "still in use"},
                 {"w-work", "issued work"},
                 {"w-queue", "full stream"},
                 {"w-verdict", "verdict"}});
}

}  // namespace transload::report
