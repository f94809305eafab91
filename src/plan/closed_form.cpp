#include "plan/closed_form.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace transload {
namespace {

// Bytes a parameter and step, docs/physics.md: the state is read, and written with the weight it makes.
constexpr double kStateRead = 10, kStateWritten = 12, kUpdateMoved = 26;
constexpr double kStateBytes = 12;  // weight, residue, two moments

double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

/// The longest of what runs at the same time, and its name.
double longest(std::initializer_list<std::pair<const char*, double>> parts, std::string& name) {
  double most = -1;
  for (const auto& [part, takes] : parts) {
    if (takes <= most) continue;
    most = takes;
    name = part;
  }
  return most;
}

double flops_a_token(const ClosedForm& f) { return f.parameters * (2 + f.length / (3 * f.hidden)); }

/// Of one token on its way through all layers: the layers' inputs, and what is kept within them.
double kept_bytes_a_token(const ClosedForm& f) {
  const double input = f.layers * f.hidden * f.element_bytes;
  const double within = f.layers * (16 * f.hidden * f.element_bytes + 2 * f.hidden);
  return (1 - f.kept) * input + f.kept * within;
}

}  // namespace

ClosedFormRow closed_form(const ClosedForm& f, double ranks) {
  ClosedFormRow row;
  row.ranks = ranks;
  const double share = f.parameters / ranks, weights = f.parameters * f.element_bytes;
  row.state_bytes = share * (kStateBytes + f.element_bytes);
  const bool drives = f.nvme_read > 0 && f.nvme_write > 0;  // that may hold the whole state
  const double free = f.memory_bytes - (drives ? 0 : row.state_bytes);
  row.tokens_that_fit = f.memory_bytes > 0 ? std::max(0.0, free / kept_bytes_a_token(f)) : 0;
  row.forward_s = seconds(flops_a_token(f) * f.tokens, f.products);
  row.backward_s = (3 - f.kept) * row.forward_s;
  const double on_drives = std::max(0.0, 1 - f.host_bytes / row.state_bytes);
  if (ranks > 1) row.pass_s = seconds(weights, f.network) * (ranks - 1) / ranks + f.layers * ranks * f.latency_s;
  row.first_s = longest({{"computation", row.forward_s},
                         {"network", row.pass_s},
                         {"host to device", seconds(weights, f.to_device)},
                         {"NVMe read", seconds(kStateRead * share * on_drives, f.nvme_read)},
                         {"NVMe write", seconds(kStateWritten * share * on_drives, f.nvme_write)},
                         {"update", seconds(kUpdateMoved * share, f.update_memory)}},
                        row.first_binds);
  row.second_s = longest({{"computation", row.backward_s},
                          {"network", 2 * row.pass_s},
                          {"host to device", seconds(weights, f.to_device)},
                          {"device to host", seconds(weights, f.from_device)}},
                         row.second_binds);
  row.step_s = row.first_s + row.second_s;
  if (row.step_s <= 0) return row;
  row.tokens_per_s = ranks * f.tokens / row.step_s;
  if (f.products > 0) row.model_utilisation = 3 * flops_a_token(f) * f.tokens / row.step_s / f.products;
  return row;
}

double tokens_that_hide(const ClosedForm& f, double bytes, double rate, double passes) {
  if (rate <= 0 || f.products <= 0) return 0;
  return bytes / rate * f.products / (passes * (2 + f.length / (3 * f.hidden)));
}

}  // namespace transload
