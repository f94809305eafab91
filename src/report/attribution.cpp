#include "report/attribution.h"

#include <algorithm>
#include <vector>

namespace transload::report {

const char* key_of(Part part) {
  constexpr const char* kKeys[kParts] = {"computation",    "update",         "nvme_read",  "nvme_write",
                                         "host_to_device", "device_to_host", "collective", "device_room",
                                         "host_room",      "verdict",        "between"};
  return kKeys[static_cast<int>(part)];
}

const char* title_of(Part part) {
  constexpr const char* kTitles[kParts] = {"computation",
                                           "updates on the host",
                                           "NVMe reads",
                                           "NVMe writes",
                                           "copies to the device",
                                           "copies from the device",
                                           "collectives between ranks",
                                           "room in device memory",
                                           "room in host memory",
                                           "the verdict",
                                           "work between kernels"};
  return kTitles[static_cast<int>(part)];
}

Part Attribution::cause() const {
  const auto greatest = [&](std::initializer_list<Part> parts) {
    return *std::max_element(parts.begin(), parts.end(), [&](Part a, Part b) { return of(a) < of(b); });
  };
  const Part work = greatest({Part::computation, Part::update, Part::between});
  std::int64_t waits = wall_ns;
  for (const Part part : {Part::computation, Part::update, Part::between}) waits -= of(part);
  if (of(work) >= waits) return work;
  return greatest({Part::nvme_read, Part::nvme_write, Part::host_to_device, Part::device_to_host, Part::collective,
                   Part::device_room, Part::host_room, Part::verdict});
}

namespace {

/// Something begins or ends: a span (its lane), or a wait (its number).
struct Edge {
  std::int64_t at_ns = 0;
  std::int32_t wait = -1;
  std::uint8_t lane = 0;
  std::int8_t change = 1;
};

/// Which lanes are at work, and which waits are open, at one instant.
class Instant {
 public:
  explicit Instant(const StepEvents& events) : events_(events) {}

  void apply(const Edge& edge) {
    if (edge.wait < 0) {
      busy_[edge.lane] += edge.change;
    } else if (edge.change > 0) {
      open_.push_back(edge.wait);
    } else {
      open_.erase(std::find(open_.begin(), open_.end(), edge.wait));
    }
  }

  bool busy(int lane) const { return busy_[static_cast<std::size_t>(lane)] > 0; }
  bool computes() const { return busy(lane_of(Lane::compute)) || busy(lane_of(Lane::host)); }

  Part part() const {
    if (busy(lane_of(Lane::compute))) return Part::computation;
    if (busy(lane_of(Lane::host))) return Part::update;
    if (busy(kCollectiveLane)) return Part::collective;
    const WaitLine* wait = foremost();
    return wait == nullptr ? Part::between : behind(*wait);
  }

 private:
  /// A processor's wait says more than that of the thread which issues its work; of one thread, the innermost.
  const WaitLine* foremost() const {
    const WaitLine* best = nullptr;
    for (const std::int32_t w : open_) {
      const WaitLine& wait = events_.waits[static_cast<std::size_t>(w)];
      if (best == nullptr || best->lane == lane_of(Lane::issue) || wait.lane != lane_of(Lane::issue)) best = &wait;
    }
    return best;
  }

  /// The first of the links that is at work; the last resort where none is.
  Part first_busy(std::initializer_list<Link> links, Part none) const {
    for (const Link link : links)
      if (busy(lane_of(link))) return static_cast<Part>(static_cast<int>(Part::nvme_read) + static_cast<int>(link));
    return none;
  }

  Part behind(const WaitLine& wait) const {
    using enum Link;
    const bool device = wait.tier == Tier::device;
    switch (wait.cause) {
      case WaitCause::content:
        if (wait.source == lane_of(nvme_read)) return Part::nvme_read;
        return first_busy({host_to_device, nvme_read, device_to_host, nvme_write}, Part::host_to_device);
      case WaitCause::room:
        return device ? first_busy({device_to_host, nvme_write, host_to_device, nvme_read}, Part::device_room)
                      : first_busy({nvme_write, device_to_host, nvme_read, host_to_device}, Part::host_room);
      case WaitCause::use:
        return device ? first_busy({host_to_device, device_to_host, nvme_read, nvme_write}, Part::between)
                      : first_busy({device_to_host, nvme_write, nvme_read, host_to_device}, Part::between);
      case WaitCause::verdict:
        return first_busy({device_to_host, host_to_device, nvme_write, nvme_read}, Part::verdict);
      case WaitCause::queue:
      case WaitCause::work:
        return first_busy({host_to_device, device_to_host, nvme_read, nvme_write}, Part::between);
    }
    return Part::between;
  }

  const StepEvents& events_;
  std::array<int, kLanes> busy_{};
  std::vector<std::int32_t> open_;
};

/// Begin and end within the step.
void add_edges(std::vector<Edge>& edges, std::int64_t begin, std::int64_t end, std::int64_t wall, Edge edge) {
  begin = std::clamp<std::int64_t>(begin, 0, wall);
  end = std::clamp<std::int64_t>(end, 0, wall);
  if (begin == end) return;
  edge.at_ns = begin;
  edges.push_back(edge);
  edge.at_ns = end;
  edge.change = -1;
  edges.push_back(edge);
}

std::vector<Edge> edges_of(const StepEvents& events, std::int64_t wall) {
  std::vector<Edge> edges;
  edges.reserve(2 * (events.spans.size() + events.waits.size()));
  for (const SpanLine& span : events.spans) add_edges(edges, span.begin_ns, span.end_ns, wall, {.lane = span.lane});
  for (std::size_t w = 0; w < events.waits.size(); ++w)
    add_edges(edges, events.waits[w].begin_ns, events.waits[w].end_ns, wall, {.wait = static_cast<std::int32_t>(w)});
  // Of edges at one instant ends come first: they open nothing that was not open before.
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.change < b.change; });
  return edges;
}

}  // namespace

Attribution attribute(const ShownStep& step) {
  Attribution out;
  out.wall_ns = static_cast<std::int64_t>(step.line.wall_ns);
  Instant instant(step.events);
  std::int64_t now = 0;
  const auto until = [&](std::int64_t at) {
    out.ns[static_cast<std::size_t>(instant.part())] += at - now;
    for (std::size_t link = 0; link < out.busy_ns.size(); ++link) {
      if (!instant.busy(static_cast<int>(link))) continue;
      out.busy_ns[link] += at - now;
      out.hidden_ns[link] += instant.computes() ? at - now : 0;
    }
    now = at;
  };
  for (const Edge& edge : edges_of(step.events, out.wall_ns)) {
    if (edge.at_ns > now) until(edge.at_ns);
    instant.apply(edge);
  }
  until(out.wall_ns);
  return out;
}

}  // namespace transload::report
