// Fully sharded data parallel in closed form, with host memory and NVMe (docs/physics.md derives it). Pure.
#pragma once

#include <cstdint>
#include <string>

namespace transload {

struct ClosedForm {
  double parameters = 0, layers = 0, hidden = 0, length = 0;
  double tokens = 0;         ///< of a device and step
  double element_bytes = 2;  ///< of a weight
  double kept = 0;           ///< part of the activations kept: 0 recomputes a layer in backward, 1 recomputes nothing
  double products = 0;       ///< FLOP/s that products reach on a device
  double network = 0;        ///< bytes a second of a device; 0: no limit
  double latency_s = 0;      ///< of a hop
  double memory_bytes = 0;   ///< for what a step keeps, and for the state where there are no drives; 0: not known
  double to_device = 0, from_device = 0;  ///< bytes a second; 0: the processor computes where the bytes are
  double nvme_read = 0, nvme_write = 0;   ///< of a device's share of the drives; 0: the state stays in memory
  double host_bytes = 0;                  ///< of host memory for the state; what is beyond it lies on the drives
  double update_memory = 0;               ///< bytes a second that the update moves in host memory; 0: no limit
};

struct ClosedFormRow {
  double ranks = 1;
  double state_bytes = 0;                ///< of a rank: weights, master, moments and gradients
  double tokens_that_fit = 0;            ///< of a rank, by what is kept of each; 0: not known or none
  double forward_s = 0, backward_s = 0;  ///< computation
  double pass_s = 0;                     ///< one pass of all weights over the network
  double first_s = 0, second_s = 0;      ///< before and after the verdict's barrier: forward, backward
  std::string first_binds, second_binds;
  double step_s = 0;
  double tokens_per_s = 0;       ///< of all ranks
  double model_utilisation = 0;  ///< of `products`, recomputation not counted
};
ClosedFormRow closed_form(const ClosedForm& form, double ranks);

/// Tokens of a device and step from which a link of `bytes` a parameter at `rate` takes no longer than `passes` passes
/// of computation (forward is one, backward two).
double tokens_that_hide(const ClosedForm& form, double bytes, double rate, double passes);

}  // namespace transload
