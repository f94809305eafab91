// What would still fit, and what more memory or faster drives would give: plans of other settings, without taking
// memory. Pure but for the accelerator that kernels are asked of.
#pragma once

#include <functional>
#include <vector>

#include "train/forecast.h"

namespace transload {

/// The largest of each, the other settings as they are. 0 where not even that of the options fits.
struct Capacity {
  std::int64_t batch = 0, length = 0;  ///< samples of a micro-batch; tokens of a sample
  std::int64_t layers = 0;             ///< of a model of this width
  std::uint64_t parameters = 0;        ///< of that model
};
/// `store_bytes`: of the store of the options' own model; that of a deeper one grows with its parameters, up to
/// nvme_capacity.
Capacity capacity_of(const TrainOptions& options, const ModelConfig& config, std::uint64_t store_bytes);

/// The largest n in [1, most] for which `fits`, which must be true up to some n and false beyond; 0: none. Asks about
/// twice log2 of the answer.
std::int64_t largest_that_fits(std::int64_t most, const std::function<bool(std::int64_t)>& fits);

struct WhatIf {
  double memory_factor = 1, nvme_factor = 1;  ///< of the host budget, of the drive's rates
  bool fits = false;
  double step_s = 0;             ///< 0: rates are not known
  std::uint64_t nvme_bytes = 0;  ///< read and written a step
};
/// As the flag gives it: with the ranks' buffers, which are taken out of it.
std::uint64_t given_host_memory(const TrainOptions& options);
/// Host memory by row, NVMe rates by column.
std::vector<WhatIf> what_if(const TrainOptions& options, const ModelConfig& config, const MachineRates& rates,
                            Accelerator* accelerator);

/// One of the settings that a search tries.
struct Candidate {
  std::uint64_t chunk_bytes = 0, device_memory = 0, host_memory = 0;
  std::int64_t batch = 0, accumulate = 1;
  Recompute recompute = Recompute::layer;
  bool fits = false;
  double step_s = 0, tokens = 0, tokens_per_s = 0, computed_s = 0;
  std::uint64_t link_bytes[kLinks] = {};
  std::string binds;
};
struct Search {
  std::vector<Candidate> candidates;   ///< all of the grid, the fastest first, what does not fit last
  std::uint64_t least_host_bytes = 0;  ///< that keeps kKept of the best's tokens/s, in sixteenths; 0: nothing fits
  static constexpr double kKept = 0.99;
};
/// The grid: chunks of a quarter to four times the options', both ways of recomputation, micro-batches of a half to
/// four times. The step's samples follow the micro-batch, but for a global batch, which is kept. `shared`: device and
/// host budgets are parts of one memory, and other splits of their sum are tried; else each is a limit of its own.
/// `done` is told how many of how many settings were tried.
Search search_settings(const TrainOptions& options, const ModelConfig& config, const MachineRates& rates,
                       Accelerator* accelerator, bool shared,
                       const std::function<void(std::size_t, std::size_t)>& done = {});

}  // namespace transload
