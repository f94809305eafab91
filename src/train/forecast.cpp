#include "train/forecast.h"

#include <algorithm>

#include "base/size.h"

namespace transload {
namespace {

constexpr std::uint64_t kSlotGrain = 4096;  // as the store's slots are rounded

std::uint64_t second_slots(const Prepared& prepared, const TrainOptions& options) {
  if (prepared.slots.empty() || !options.durable) return 0;
  const Layout& layout = *prepared.code.layout;
  std::uint64_t bytes = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b)
    if (prepared.code.blocks[b].durable && !layout.chunk(layout.chunk_of(BlockId(b))).frozen)
      bytes += round_up(prepared.code.blocks[b].bytes, kSlotGrain);
  return bytes;
}

double rate_of(const Rates& rates, Link link) {
  const double all[kLinks] = {rates.nvme_read, rates.nvme_write, rates.host_to_device, rates.device_to_host};
  return all[static_cast<int>(link)];
}

/// What ranks exchange, in bytes of whole chunks, before and from backward on.
struct Exchanged {
  double gathered[2] = {}, scattered[2] = {};
};
Exchanged exchanged(const StepCode& code) {
  Exchanged bytes;
  for (std::size_t t = 0; t < code.step.accesses.size(); ++t) {
    const Access& a = code.step.accesses[t];
    const BlockSpec& block = code.blocks[a.block.value];
    const int part = t >= code.step.backward_tick ? 1 : 0;
    const MemoryKind use = use_of(block.plane);
    if (use == MemoryKind::gathered && a.kind == AccessKind::write)
      bytes.gathered[part] += static_cast<double>(block.bytes);
    if (use == MemoryKind::local && a.kind == AccessKind::consume)
      bytes.scattered[part] += static_cast<double>(block.bytes);
  }
  return bytes;
}

/// NCCL's run beside what the device computes. The host's transports copy and add with the same processor that computes
/// (or, beside a device, updates), so they add up: two ranks that share two processors leave none over for them.
Collectives collectives_of(const Exchanged& bytes, const TrainOptions& options, const CollectiveRates& rates) {
  if (options.shards.count == 1) return {};
  const auto seconds = [&](int part) {
    return bytes.gathered[part] / rates.gather + bytes.scattered[part] / rates.scatter;
  };
  return {.first_s = seconds(0), .backward_s = seconds(1), .beside = options.comm_tier == Tier::device};
}

/// Every link that the plan uses has a rate.
bool all_known(const Plan& plan, const TrainOptions& options, const MachineRates& rates) {
  if (options.shards.count > 1 && (rates.collectives.gather <= 0 || rates.collectives.scatter <= 0)) return false;
  for (int i = 0; i < kLinks; ++i)
    if (plan.bytes[i] > 0 && rate_of(rates.links, static_cast<Link>(i)) <= 0) return false;
  return rates.products > 0 && rates.updates > 0;
}

struct Computation {
  double forward_s = 0, backward_s = 0, update_s = 0;
};
Computation computation(const Prepared& prepared, const TrainOptions& options, const MachineRates& rates) {
  const RunPlan& plan = prepared.plan;
  const double products_s = step_flops(plan.config, options.shape) / rates.products;
  const double forward = forward_share(options.shape);
  // What the device updates is done there in a moment; the rest takes the host's processor.
  const double on_host = 1 - static_cast<double>(plan.device_updates) /
                                 static_cast<double>(std::max<std::uint64_t>(1, plan.updated_chunks));
  return {.forward_s = forward * products_s,
          .backward_s = (1 - forward) * products_s,
          .update_s = on_host * static_cast<double>(plan.trainable) / options.shards.count / rates.updates};
}

}  // namespace

Forecast forecast(const Prepared& prepared, const TrainOptions& options, const MachineRates& rates) {
  const Plan& plan = prepared.plan.plan;
  const PlanInput input = plan_input(prepared, prepared.code.step, rates.links);
  Forecast out;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto i = static_cast<std::size_t>(tier);
    out.peaks[i] = memory_peak(input, plan, tier);
    out.used_bytes[i] = prepared.used_bytes[i];
    out.in_flight_bytes[i] = prepared.in_flight_bytes[i];
  }
  out.buffer_bytes[static_cast<std::size_t>(options.comm_tier)] = options.comm_bytes;
  out.second_slot_bytes = second_slots(prepared, options);
  out.tokens = static_cast<double>(options.shape.batch * options.shape.length * options.shape.accumulate);
  const Exchanged bytes = exchanged(prepared.code);
  out.gathered_bytes = bytes.gathered[0] + bytes.gathered[1];
  out.scattered_bytes = bytes.scattered[0] + bytes.scattered[1];
  out.timed = all_known(plan, options, rates);
  if (!out.timed) return out;
  const Computation compute = computation(prepared, options, rates);
  const Collectives collectives = collectives_of(bytes, options, rates.collectives);
  out.time = predict_step(input, plan, compute.forward_s, compute.backward_s, compute.update_s, collectives);
  if (out.gathered_bytes > 0) out.gather_s = out.gathered_bytes / rates.collectives.gather;
  if (out.scattered_bytes > 0) out.scatter_s = out.scattered_bytes / rates.collectives.scatter;
  const double a_token_s = (compute.forward_s + compute.backward_s) / out.tokens;
  for (int i = 0; i < kLinks; ++i)
    if (plan.bytes[i] > 0)
      out.hidden_from[i] = static_cast<double>(plan.bytes[i]) / rate_of(rates.links, static_cast<Link>(i)) / a_token_s;
  return out;
}

}  // namespace transload
