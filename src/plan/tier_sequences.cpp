#include "plan/tier_sequences.h"

#include <algorithm>

#include "base/check.h"
#include "base/size.h"

namespace transload {

namespace {

TierOp op_of(AccessKind kind) {
  switch (kind) {
    case AccessKind::read:
      return TierOp::read;
    case AccessKind::write:
      return TierOp::write;
    case AccessKind::update:
      return TierOp::update;
    case AccessKind::consume:
      return TierOp::consume;
  }
  return TierOp::none;
}

/// What a host access means for the copy on the device.
TierOp seen_from_device(AccessKind kind) {
  if (kind == AccessKind::read) return TierOp::flush;
  return kind == AccessKind::write ? TierOp::kill : TierOp::take;
}

TierProblem sized_problem(const PlanInput& input, Tier tier) {
  TierProblem problem;
  TRANSLOAD_CHECK(input.budgets.frame_bytes > 0, "frames of no size");
  for (const BlockSpec& b : *input.blocks) {
    problem.bytes.push_back(b.bytes);
    problem.frames.push_back(ceil_div(b.bytes, input.budgets.frame_bytes));
  }
  problem.in_flight = ceil_div(input.in_flight_bytes[static_cast<int>(tier)], input.budgets.frame_bytes);
  return problem;
}

/// Whole frames that blocks may take beside workspace.
std::uint64_t frames_beside(std::uint64_t budget_bytes, std::uint64_t workspace, std::uint64_t frame_bytes) {
  const std::uint64_t all = budget_bytes / frame_bytes, taken = ceil_div(workspace, frame_bytes);
  return all > taken ? all - taken : 0;
}

class HostSequence {
 public:
  HostSequence(const PlanInput& input, const TierPlan* device)
      : input_(input),
        trace_(*input.trace),
        device_(device),
        problem_(sized_problem(input, Tier::host)),
        workspace_(workspace_by_tick(trace_, Tier::host)) {}

  TierProblem build() {
    const auto n = static_cast<std::uint32_t>(trace_.accesses.size());
    tick_begin_.resize(n + 1);
    for (std::uint32_t t = 0; t < n; ++t) {
      tick_begin_[t] = static_cast<std::uint32_t>(problem_.uses.size());
      if (t == trace_.commit_tick) add_commit(t);
      add_device_traffic(t);
      add_access(t);
    }
    tick_begin_[n] = static_cast<std::uint32_t>(problem_.uses.size());
    for (TierUse& use : problem_.uses)
      if (use.release == kAtTick) use.release = tick_begin_[trace_.accesses[use.tick].release_tick];
    problem_.may_evict = input_.budgets.nvme_bytes > 0;
    if (!problem_.may_evict) add_unused_blocks();
    return std::move(problem_);
  }

 private:
  static constexpr std::uint32_t kAtTick = UINT32_MAX;  // release to be resolved once all positions are known

  void push(std::uint32_t block, TierOp op, std::uint32_t tick, bool held, bool above = false) {
    const auto next = static_cast<std::uint32_t>(problem_.uses.size() + 1);
    problem_.uses.push_back({block, op, tick, held ? kAtTick : next, above});
    problem_.usable.push_back(frames_beside(input_.budgets.host_bytes, workspace_[tick], input_.budgets.frame_bytes));
  }

  void add_commit(std::uint32_t tick) {
    for (std::size_t b = 0; b < input_.blocks->size(); ++b)
      if ((*input_.blocks)[b].durable) push(static_cast<std::uint32_t>(b), TierOp::flush, tick, false);
  }

  void add_device_traffic(std::uint32_t tick) {
    if (device_ == nullptr) return;
    for (; write_ < device_->writes.size() && device_->writes[write_].tick == tick; ++write_)
      push(device_->writes[write_].block, TierOp::write, tick, false);
    for (; fetch_ < device_->fetches.size() && device_->fetches[fetch_].tick == tick; ++fetch_)
      push(device_->fetches[fetch_].block, TierOp::read, tick, false, true);
  }

  void add_access(std::uint32_t tick) {
    const Access& a = trace_.accesses[tick];
    if (a.tier == Tier::host) {
      push(a.block.value, op_of(a.kind), tick, true);
    } else if (a.kind != AccessKind::read) {
      push(a.block.value, TierOp::kill, tick, false, needs_content(a.kind));
    } else {
      push(UINT32_MAX, TierOp::none, tick, false);
    }
  }

  /// With nothing below, durable blocks lie here even when a step does not use them.
  void add_unused_blocks() {
    std::vector<char> used(problem_.frames.size(), 0);
    for (const TierUse& use : problem_.uses)
      if (use.op != TierOp::none) used[use.block] = 1;
    for (std::size_t b = 0; b < used.size(); ++b)
      if (used[b] == 0 && (*input_.blocks)[b].durable) problem_.constant += problem_.frames[b];
  }

  const PlanInput& input_;
  const Trace& trace_;
  const TierPlan* device_;
  TierProblem problem_;
  const std::vector<std::uint64_t> workspace_;
  std::vector<std::uint32_t> tick_begin_;
  std::size_t write_ = 0, fetch_ = 0;
};

}  // namespace

std::vector<std::uint64_t> workspace_by_tick(const Trace& trace, Tier tier) {
  std::vector<std::uint64_t> bytes(trace.accesses.size(), 0);
  std::uint64_t now = 0;
  // The step before left its last size behind.
  for (const WorkspaceChange& change : trace.workspace)
    if (change.tier == tier) now = change.bytes;
  std::size_t next = 0;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    for (; next < trace.workspace.size() && trace.workspace[next].tick <= t; ++next)
      if (trace.workspace[next].tier == tier) now = trace.workspace[next].bytes;
    bytes[t] = now;
  }
  return bytes;
}

std::vector<bool> leaves_device(const Trace& trace, std::size_t blocks) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<bool> leaves(trace.accesses.size(), false);
  std::vector<std::uint32_t> last(blocks, kNone);
  // Twice around, so that an access at the step's end sees the next step's first.
  for (std::uint32_t i = 0; i < 2 * trace.accesses.size(); ++i) {
    const auto tick = static_cast<std::uint32_t>(i % trace.accesses.size());
    const Access& a = trace.accesses[tick];
    std::uint32_t& device = last[a.block.value];
    if (a.tier == Tier::device) {
      device = tick;
    } else if (device != kNone && a.kind != AccessKind::write) {
      leaves[device] = makes_version(trace.accesses[device].kind);
      device = kNone;
    }
  }
  return leaves;
}

TierProblem device_problem(const PlanInput& input) {
  const Trace& trace = *input.trace;
  TierProblem problem = sized_problem(input, Tier::device);
  const std::vector<std::uint64_t> workspace = workspace_by_tick(trace, Tier::device);
  std::vector<char> on_device(problem.frames.size(), 0);
  for (const Access& a : trace.accesses)
    if (a.tier == Tier::device) on_device[a.block.value] = 1;
  for (std::uint32_t t = 0; t < trace.accesses.size(); ++t) {
    const Access& a = trace.accesses[t];
    TierUse use{a.block.value, TierOp::none, t, t + 1};
    if (a.tier == Tier::device) {
      use.op = op_of(a.kind);
      use.release = a.release_tick;
    } else if (on_device[a.block.value] != 0) {
      use.op = seen_from_device(a.kind);
      use.release = use.op == TierOp::take ? a.release_tick : t + 1;
    }
    problem.uses.push_back(use);
    problem.usable.push_back(frames_beside(input.budgets.device_bytes, workspace[t], input.budgets.frame_bytes));
  }
  return problem;
}

TierProblem host_problem(const PlanInput& input, const TierPlan* device) { return HostSequence(input, device).build(); }

}  // namespace transload
