// NUMA: which node is nearest to a PCI device, and memory bound to a node before it is touched. By hwloc where the
// build has it, else by what the kernel shows in /sys; where neither knows or the system refuses, the reason is given.
// Threading: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace transload::numa {

struct Node {
  int node = 0;  ///< as the kernel counts
  std::uint64_t bytes = 0;
  std::string cores;
};
struct Nodes {
  std::string source;  ///< "hwloc" | "/sys"
  std::vector<Node> nodes;
};
Nodes nodes();

struct Near {
  int node = -1;       ///< −1: not known
  std::string reason;  ///< why not
};
/// `pci`: bus id, "0000:3b:00.0".
Near nearest_node(const std::string& pci);

/// Pages of [at, at + bytes) that nobody has touched will be taken from `node`. Empty where the system agreed, or where
/// it is the only node; else why not.
std::string bind(void* at, std::uint64_t bytes, int node);

}  // namespace transload::numa
