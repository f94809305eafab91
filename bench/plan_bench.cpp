// bench_plan: how long planning takes, and how far the planned bytes are from the proven bound, with LRU beside it.
// The limit it is up against: 2 s for 10,000 blocks, and 1.10 of the bound for the budget less the room for transfers.
#include <fmt/format.h>

#include <chrono>

#include "base/size.h"
#include "plan/bounds.h"
#include "plan/link_bounds.h"
#include "plan/planner.h"
#include "plan/traces.h"

namespace transload {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

void print_row(const PlanInput& input, int percent) {
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = make_plan(input);
  const double plan_s = seconds_since(begin);
  PlanInput beside = input;
  beside.budgets.host_bytes -= input.in_flight_bytes[1];
  const std::uint64_t bound = least_fetch_bytes(memory_problem(beside));
  const LinkBytes lru = simulate_lru(input);
  const auto read = static_cast<int>(Link::nvme_read), write = static_cast<int>(Link::nvme_write);
  const auto ratio = [&](std::uint64_t to) { return static_cast<double>(plan.bytes[read]) / static_cast<double>(to); };
  fmt::print("{:4} %  {:7.2f} s  {:10.1f}  {:10.1f}  {:6.3f}  {:6.3f}  {:10.1f}  {:10.1f}  {:10.1f}  {:10.1f}\n",
             percent, plan_s, megabytes(bound), megabytes(plan.bytes[read]), ratio(bound),
             ratio(plan.lower_bound[read]), megabytes(plan.lower_bound[write]), megabytes(plan.bytes[write]),
             megabytes(lru.bytes[read]), megabytes(lru.bytes[write]));
}

void print_table(const char* title, std::uint32_t chunks, Tier compute) {
  const std::uint64_t chunk_bytes = 2 * MiB, kept = 3 * MiB / 2;
  const auto step = test::training_step(chunks, chunk_bytes / 2, kept, 64 * MiB, compute);
  const std::uint64_t all = test::all_bytes(step.blocks);
  fmt::print("{}: {} blocks, {} accesses, {}\n", title, step.blocks.size(), step.trace.accesses.size(),
             format_size(all));
  fmt::print(
      "budget  planning  read bound   read plan   ratio     raw  wrt. bound  wrt. plan    LRU read  LRU wrt. (MB)\n");
  for (const int percent : {25, 40, 60, 90}) {
    PlanInput input;
    input.trace = &step.trace;
    input.blocks = &step.blocks;
    const std::uint64_t budget = all * static_cast<std::uint64_t>(percent) / 100;
    input.budgets = {compute == Tier::device ? all / 20 : 0, budget, 2 * all, 256 * KiB};
    input.in_flight_bytes[0] = input.in_flight_bytes[1] = 16 * 4 * MiB;
    print_row(input, percent);
  }
}

}  // namespace
}  // namespace transload

int main() {
  transload::print_table("two tiers", 1667, transload::Tier::host);
  transload::print_table("three tiers", 1667, transload::Tier::device);
  transload::print_table("two tiers, small", 200, transload::Tier::host);
}
