#include "offload/numa/numa.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/size.h"
#ifdef TRANSLOAD_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace transload::numa {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Nodes nodes_from_sys() {
  Nodes found{.source = "/sys", .nodes = {}};
  for (int node = 0; std::filesystem::exists(fmt::format("/sys/devices/system/node/node{}", node)); ++node) {
    const std::string folder = fmt::format("/sys/devices/system/node/node{}", node);
    std::istringstream line(first_line(folder + "/meminfo"));  // "Node 0 MemTotal: 24 kB"
    std::string word;
    std::uint64_t kib = 0;
    line >> word >> word >> word >> kib;
    found.nodes.push_back({.node = node, .bytes = kib * KiB, .cores = first_line(folder + "/cpulist")});
  }
  return found;
}

Near nearest_from_sys(const std::string& pci) {
  const std::string path = "/sys/bus/pci/devices/" + pci + "/numa_node";
  const std::string text = first_line(path);
  if (text.empty()) return {-1, fmt::format("the kernel does not show the device {}", pci)};
  if (text.front() == '-') return {-1, fmt::format("the firmware names no node for the device {}", pci)};
  return {std::stoi(text), ""};
}

#ifdef TRANSLOAD_HAVE_HWLOC

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) return;
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  bool loaded() const { return loaded_; }
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

Nodes nodes_from_hwloc(const Topology& topology) {
  Nodes found{.source = "hwloc", .nodes = {}};
  const int count = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t object = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    char cores[256] = {};
    hwloc_bitmap_list_snprintf(cores, sizeof cores, object->cpuset);
    found.nodes.push_back(
        {.node = static_cast<int>(object->os_index), .bytes = object->attr->numanode.local_memory, .cores = cores});
  }
  return found;
}

Near nearest_from_hwloc(const Topology& topology, const std::string& pci) {
  const hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology.get(), pci.c_str());
  if (device == nullptr) return {-1, fmt::format("hwloc does not show the device {}", pci)};
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology.get(), device);
  if (hwloc_bitmap_weight(place->nodeset) != 1)
    return {-1, fmt::format("the device {} is as near to one of {} nodes as to another", pci,
                            hwloc_bitmap_weight(place->nodeset))};
  return {hwloc_bitmap_first(place->nodeset), ""};
}

std::string bind_by_hwloc(const Topology& topology, void* at, std::uint64_t bytes, int node) {
  if (hwloc_get_numanode_obj_by_os_index(topology.get(), static_cast<unsigned>(node)) == nullptr)
    return fmt::format("there is no NUMA node {}", node);
  // Of another machine's topology every binding succeeds and none is made.
  if (hwloc_topology_is_thissystem(topology.get()) == 0) return "hwloc was given the topology of another machine";
  if (hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE) == 1) return "";
  const hwloc_bitmap_t set = hwloc_bitmap_alloc();
  hwloc_bitmap_only(set, static_cast<unsigned>(node));
  const int result =
      hwloc_set_area_membind(topology.get(), at, bytes, set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
  const int error = errno;
  hwloc_bitmap_free(set);
  if (result == 0) return "";
  return fmt::format("binding {} to NUMA node {} was refused: {}", format_size(bytes), node, std::strerror(error));
}

#endif

}  // namespace

Nodes nodes() {
#ifdef TRANSLOAD_HAVE_HWLOC
  if (const Topology topology; topology.loaded()) {
    Nodes found = nodes_from_hwloc(topology);
    if (!found.nodes.empty()) return found;
  }
#endif
  return nodes_from_sys();
}

Near nearest_node(const std::string& pci) {
#ifdef TRANSLOAD_HAVE_HWLOC
  if (const Topology topology; topology.loaded()) {
    const Nodes all = nodes_from_hwloc(topology);
    if (all.nodes.size() == 1) return {all.nodes.front().node, ""};
    Near near = nearest_from_hwloc(topology, pci);
    if (near.node >= 0) return near;
    // hwloc sees PCI devices through a plugin that may be missing.
    const Near from_sys = nearest_from_sys(pci);
    return from_sys.node >= 0 ? from_sys : Near{-1, near.reason + "; " + from_sys.reason};
  }
#endif
  const Nodes all = nodes_from_sys();
  return all.nodes.size() == 1 ? Near{all.nodes.front().node, ""} : nearest_from_sys(pci);
}

std::string bind(void* at, std::uint64_t bytes, int node) {
#ifdef TRANSLOAD_HAVE_HWLOC
  const Topology topology;
  if (!topology.loaded()) return "hwloc found no topology";
  return bind_by_hwloc(topology, at, bytes, node);
#else
  const Nodes all = nodes_from_sys();
  if (all.nodes.size() == 1 && all.nodes.front().node == node) return "";
  return fmt::format("this build has no hwloc to bind memory to NUMA node {} with", node);
#endif
}

}  // namespace transload::numa
