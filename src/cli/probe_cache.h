// What was measured of this machine, kept with its date so that `plan` need not measure: one JSON file below
// $XDG_CACHE_HOME (or ~/.cache)/transload. Read whole, written by renaming; of two writers the last one wins.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/calibrate.h"
#include "train/collective_rates.h"
#include "train/forecast.h"

namespace transload::cli {

/// Empty where neither variable is set: nothing is kept then.
std::string cache_folder();

class ProbeCache {
 public:
  ProbeCache();
  /// Of computation and memory under `compute_key`, of NVMe for `folder` or what lies above it. What is not there is 0.
  MachineRates rates(const std::string& compute_key, const std::string& folder) const;
  void keep_compute(const std::string& compute_key, const ComputeRates& rates);
  void keep_collectives(const std::string& collective_key, const CollectiveRates& rates);
  CollectiveRates collectives(const std::string& collective_key) const;
  void keep_folder(const std::string& folder, double read, double write, double duplex);
  bool save() const;  ///< false: it could not be written

 private:
  nlohmann::json json_;
};

}  // namespace transload::cli
