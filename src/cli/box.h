// A box file: a machine that a plan is made for without having it. TOML; docs/formats.md has the keys. Rates are what
// the file says, and it says where it has them from.
#pragma once

#include <cstdint>
#include <string>

#include "cli/settings.h"
#include "plan/closed_form.h"
#include "train/forecast.h"

namespace transload::cli {

struct Box {
  std::string name, source;
  double device_memory = 0, device_compute = 0, device_reached = 1, to_device = 0, from_device = 0;
  double host_memory = 0, host_bandwidth = 0, host_compute = 0, host_reached = 1;
  double nvme_capacity = 0, nvme_read = 0, nvme_write = 0, nvme_duplex = 0, nvme_endurance = 0;
  double network_bandwidth = 0, network_latency_s = 0;
  bool has_device() const { return device_memory > 0; }
};

/// InputError with file and line: not TOML, an unknown key, a value that is negative or of another unit, or values that
/// contradict each other.
Box read_box(const std::string& path);

/// Budgets of the box where the user names none. With a device it is planned as `emulated`: the same three tiers.
void fill_from_box(const Box& box, GivenSettings& given);

MachineRates rates_of(const Box& box);
/// Said of a box whose products are taken at their peak; else empty.
std::string best_case_text(const Box& box);

}  // namespace transload::cli
