// predict_step: the plan's transfers beside the computation, in the steady state, and what no schedule can beat.
#include <algorithm>
#include <utility>
#include <vector>

#include "plan/link_pair.h"
#include "plan/planner.h"
#include "plan/tier_sequences.h"

namespace transload {

namespace {

/// Seconds of computation of each access: forward and update before the verdict's barrier of the last step, backward
/// after; within a part in proportion to bytes.
std::vector<double> spread(const PlanInput& input, double first_s, double backward_s) {
  const Trace& trace = *input.trace;
  std::vector<double> seconds(trace.accesses.size());
  double bytes[2] = {0, 0};
  for (std::size_t t = 0; t < seconds.size(); ++t) {
    seconds[t] = static_cast<double>((*input.blocks)[trace.accesses[t].block.value].bytes);
    bytes[t >= trace.backward_tick] += seconds[t];
  }
  for (std::size_t t = 0; t < seconds.size(); ++t) {
    const bool backward = t >= trace.backward_tick;
    seconds[t] *= bytes[backward] > 0 ? (backward ? backward_s : first_s) / bytes[backward] : 0;
  }
  return seconds;
}

/// With a device, the update runs on the host's processor beside it; without one, both take the same processor.
double first_part(const PlanInput& input, double forward_s, double update_s) {
  return input.budgets.device_bytes > 0 ? std::max(forward_s, update_s) : forward_s + update_s;
}

/// A part of the step, with the collectives that take place in it.
double with_collectives(double compute_s, double collectives_s, bool beside) {
  return beside ? std::max(compute_s, collectives_s) : compute_s + collectives_s;
}

class StepSimulation {
 public:
  StepSimulation(const PlanInput& input, const Plan& plan, std::vector<double> compute)
      : input_(input),
        plan_(plan),
        compute_(std::move(compute)),
        nvme_(input.rates.nvme_read, input.rates.nvme_write, input.rates.nvme_duplex),
        device_(input.rates.host_to_device, input.rates.device_to_host, 0),
        leaves_(leaves_device(*input.trace, input.blocks->size())),
        down_(input.blocks->size(), 0) {}

  /// The first step finds cold queues; the last is the steady state.
  double run(int steps) {
    double begin = 0, took = 0;
    for (int s = 0; s < steps; ++s) {
      begin = now_;
      for (std::uint32_t t = 0; t < compute_.size(); ++t) access(s, t);
      took = now_ - begin;
    }
    return took;
  }

 private:
  double bytes(BlockId b) const { return static_cast<double>((*input_.blocks)[b.value].bytes); }

  void access(int step, std::uint32_t t) {
    issue(Tier::host, nvme_, step, t);
    issue(Tier::device, device_, step, t);
    now_ = std::max(now_, nvme_.finish_reads(due_[1], now_));
    now_ = std::max(now_, device_.finish_reads(due_[0], now_));
    const Access& a = input_.trace->accesses[t];
    std::uint64_t& down = down_[a.block.value];
    if (a.tier == Tier::host && needs_content(a.kind)) now_ = std::max(now_, device_.finish_writes(down, now_));
    now_ += compute_[t];
    nvme_.advance(now_);
    device_.advance(now_);
    if (makes_version(a.kind)) down = 0;
    if (leaves_[t]) write_down(a.block);
    drop(t);
  }

  void write_down(BlockId block) {
    if (down_[block.value] > 0) return;
    device_.write(bytes(block));
    down_[block.value] = ++writes_down_;
  }

  /// Hands the link what may be fetched now; due_ counts those that this access waits for.
  void issue(Tier tier, LinkPair& link, int step, std::uint32_t t) {
    const int i = static_cast<int>(tier);
    const auto& list = plan_.fetches[i];
    const std::uint64_t n = compute_.size(), at = static_cast<std::uint64_t>(step) * n + t;
    for (; !list.empty(); ++issued_[i]) {
      const Plan::Fetch& f = list[issued_[i] % list.size()];
      const std::uint64_t need = issued_[i] / list.size() * n + f.need_tick;
      if (at + f.lead < need) break;
      link.read(bytes(f.block));
      needs_[i].push_back(need);
    }
    while (due_[i] < needs_[i].size() && needs_[i][due_[i]] <= at) ++due_[i];
  }

  void drop(std::uint32_t t) {
    for (const Tier tier : {Tier::host, Tier::device}) {
      const auto& list = plan_.drops[static_cast<int>(tier)];
      auto d = std::lower_bound(list.begin(), list.end(), t,
                                [](const Plan::Drop& x, std::uint32_t tick) { return x.after_tick < tick; });
      for (; d != list.end() && d->after_tick == t; ++d) {
        if (!d->write) continue;
        if (tier == Tier::host)
          nvme_.write(bytes(d->block));
        else
          write_down(d->block);
      }
    }
  }

  const PlanInput& input_;
  const Plan& plan_;
  const std::vector<double> compute_;
  LinkPair nvme_, device_;
  const std::vector<bool> leaves_;   // by tick
  std::vector<std::uint64_t> down_;  // by block: the number of the copy down that brought its version; 0: none did
  std::uint64_t writes_down_ = 0;
  double now_ = 0;
  std::uint64_t issued_[2] = {0, 0}, due_[2] = {0, 0};
  std::vector<std::uint64_t> needs_[2];
};

double seconds_for(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

/// Bytes that a part of the step needs or makes, less what memory may hold when the part begins or ends: they cross
/// nvme within the part. This is the sharper bound: until the verdict nothing of the update may be applied, so the
/// states of the first part come in after it, except for what already lies in memory then.
struct PartBytes {
  double read = 0, write = 0;
};
PartBytes bytes_within(const PlanInput& input, std::uint32_t begin, std::uint32_t end) {
  PartBytes part;
  std::vector<char> seen(input.blocks->size(), 0), made(seen);
  for (std::uint32_t t = begin; t < end; ++t) {
    const Access& a = input.trace->accesses[t];
    const auto bytes = static_cast<double>((*input.blocks)[a.block.value].bytes);
    if (seen[a.block.value] == 0 && needs_content(a.kind)) part.read += bytes;
    if (makes_version(a.kind) && made[a.block.value] == 0 && (*input.blocks)[a.block.value].durable)
      part.write += bytes;
    seen[a.block.value] = 1;
    made[a.block.value] = makes_version(a.kind) || made[a.block.value] != 0;
  }
  const auto room = static_cast<double>(input.budgets.host_bytes + input.budgets.device_bytes);
  part.read = std::max(0.0, part.read - room);
  part.write = std::max(0.0, part.write - room);
  return part;
}

double part_bound(const PlanInput& input, std::uint32_t begin, std::uint32_t end, double compute_s) {
  if (input.budgets.nvme_bytes == 0) return compute_s;
  const PartBytes part = bytes_within(input, begin, end);
  return std::max({compute_s, seconds_for(part.read, input.rates.nvme_read),
                   seconds_for(part.write, input.rates.nvme_write),
                   seconds_for(part.read + part.write, input.rates.nvme_duplex)});
}

void plain_bound(const PlanInput& input, const Plan& plan, const Collectives& collectives, StepTime& time) {
  const auto least = [&](Link link) { return static_cast<double>(plan.lower_bound[static_cast<int>(link)]); };
  const double device_compute = time.forward_s + time.backward_s;
  const double on_processor = collectives.beside ? 0 : collectives.all_s();
  const bool device = input.budgets.device_bytes > 0;
  double memory_bytes = 0;
  for (const Access& a : input.trace->accesses)
    if (a.tier == Tier::host)
      memory_bytes +=
          static_cast<double>((*input.blocks)[a.block.value].bytes) * (a.kind == AccessKind::update ? 2 : 1);
  const Rates& r = input.rates;
  const std::pair<const char*, double> limits[] = {
      {"computation",
       (device ? std::max(device_compute, time.update_s) : device_compute + time.update_s) + on_processor},
      {"collectives", collectives.all_s()},
      {"nvme_read", seconds_for(least(Link::nvme_read), r.nvme_read)},
      {"nvme_write", seconds_for(least(Link::nvme_write), r.nvme_write)},
      {"nvme_duplex", seconds_for(least(Link::nvme_read) + least(Link::nvme_write), r.nvme_duplex)},
      {"host_to_device", seconds_for(least(Link::host_to_device), r.host_to_device)},
      {"device_to_host", seconds_for(least(Link::device_to_host), r.device_to_host)},
      {"memory", seconds_for(memory_bytes, r.memory)}};
  for (const auto& [name, seconds] : limits) {
    if (seconds <= time.plain_bound_s && !time.binds.empty()) continue;
    time.plain_bound_s = seconds;
    time.binds = name;
  }
}

}  // namespace

StepTime predict_step(const PlanInput& input, const Plan& plan, double forward_s, double backward_s, double update_s,
                      const Collectives& collectives) {
  StepTime time;
  time.forward_s = forward_s;
  time.backward_s = backward_s;
  time.update_s = update_s;
  time.collectives_s = collectives.all_s();
  if (input.trace->accesses.empty()) return time;
  const double first_s =
      with_collectives(first_part(input, forward_s, update_s), collectives.first_s, collectives.beside);
  const double second_s = with_collectives(backward_s, collectives.backward_s, collectives.beside);
  const auto ticks = static_cast<std::uint32_t>(input.trace->accesses.size());
  const std::uint32_t backward = std::min(input.trace->backward_tick, ticks);
  plain_bound(input, plan, collectives, time);
  const double parts = part_bound(input, 0, backward, first_s) + part_bound(input, backward, ticks, second_s);
  time.lower_bound_s = std::max(time.plain_bound_s, parts);
  time.step_s = StepSimulation(input, plan, spread(input, first_s, second_s)).run(3);
  return time;
}

}  // namespace transload
