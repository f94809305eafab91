// Work over the stand-in for CUDA that comes out wrong where a wait of the back end is left out. Each says whether it
// came out right; some throw, crash or never end instead: run them in a process of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cuda_waits {

struct Workload {
  std::string name;
  std::function<bool()> comes_out_right;
};

/// Those that end within milliseconds first. `folder`: the trainer's are compared with what they gave when `first`.
std::vector<Workload> workloads(const std::string& folder, bool first);

}  // namespace cuda_waits
