#include "train/taken_memory.h"

#include <algorithm>

#include "base/size.h"

namespace transload {

std::uint64_t largest_durable(const std::vector<BlockSpec>& blocks) {
  std::uint64_t largest = 0;
  for (const BlockSpec& block : blocks)
    if (block.durable) largest = std::max(largest, block.bytes);
  return largest;
}

namespace {

constexpr std::uint64_t kSmallPart = 64;  ///< of what is used anyway
constexpr std::uint64_t kAtOnce = 16;     ///< of what comes early or leaves late in a pass, one in so many at once

struct Pass {
  const Trace* trace;
  LinkBytes moved;
};

std::uint64_t made_bytes(const Trace& trace, const std::vector<BlockSpec>& blocks, Tier tier) {
  std::uint64_t bytes = 0;
  for (const Access& a : trace.accesses)
    if (a.tier == tier && a.kind == AccessKind::write) bytes += blocks[a.block.value].bytes;
  return bytes;
}

/// Fetches may come before their time; what leaves late is in the way of what comes or is made meanwhile.
std::uint64_t out_of_time(const Pass& pass, const std::vector<BlockSpec>& blocks, Tier tier) {
  const auto moved = [&](Link link) { return pass.moved.bytes[static_cast<int>(link)]; };
  const bool device = tier == Tier::device;
  const std::uint64_t early = moved(device ? Link::host_to_device : Link::nvme_read);
  const std::uint64_t late = moved(device ? Link::device_to_host : Link::nvme_write);
  const std::uint64_t from_above = device ? 0 : moved(Link::device_to_host);
  return early + std::min(late, early + from_above + made_bytes(*pass.trace, blocks, tier));
}

Pass steady_pass(const Prepared& planned) {
  Pass pass{&planned.code.step, {}};
  std::copy(std::begin(planned.plan.plan.bytes), std::end(planned.plan.plan.bytes), pass.moved.bytes);
  return pass;
}

std::uint64_t most_out_of_time(const Prepared& planned, Tier tier) {
  const StepCode& code = planned.code;
  const CommitCycle& cycle = planned.cycle;
  std::uint64_t most = out_of_time(steady_pass(planned), code.blocks, tier);
  if (!cycle.planned()) return most;
  for (const Pass& pass :
       {Pass{&code.flush, cycle.commit}, Pass{&code.fresh_step, cycle.first}, Pass{&code.step, cycle.second}})
    most = std::max(most, out_of_time(pass, code.blocks, tier));
  return most;
}

/// How much moves out of its time, beside what is used: nothing; less than half of it; more.
enum Traffic : std::uint8_t { kNone, kLittle, kMuch };
Traffic traffic_of(std::uint64_t out_of_time, std::uint64_t used) {
  return out_of_time == 0 ? kNone : out_of_time < used / 2 ? kLittle : kMuch;
}

/// Room of a whole budget for transfers. Where much moves, all that they may take pays; elsewhere what lies there all
/// the time does. What is used then leaves at least as much as take_what_is_used asks for.
std::uint64_t room_of(Traffic traffic, const std::vector<BlockSpec>& blocks, std::uint64_t budget,
                      std::uint64_t frame_bytes, std::uint64_t most_room) {
  if (traffic == kMuch) return most_room;
  const std::uint64_t part = budget / (kSmallPart + 1) / frame_bytes * frame_bytes;
  return std::min(most_room, traffic == kNone ? part : std::max(part, round_up(largest_durable(blocks), frame_bytes)));
}

/// With the least room that is enough for what then moves.
void plan_step(Prepared& planned, std::uint64_t most_room) {
  const Budgets& budgets = planned.plan.budgets;
  Traffic expected[2] = {kNone, kNone};
  const auto room = [&](Tier tier) {
    return room_of(expected[static_cast<int>(tier)], planned.code.blocks, budgets.of(tier), budgets.frame_bytes,
                   most_room);
  };
  for (bool again = true; again;) {
    for (const Tier tier : {Tier::device, Tier::host}) planned.in_flight_bytes[static_cast<int>(tier)] = room(tier);
    planned.plan.plan = make_plan(plan_input(planned, planned.code.step, {}));
    again = false;
    for (const Tier tier : {Tier::device, Tier::host}) {
      const auto t = static_cast<std::size_t>(tier);
      const std::uint64_t moved = out_of_time(steady_pass(planned), planned.code.blocks, tier);
      expected[t] = std::max(expected[t], traffic_of(moved, planned.plan.plan.peak_bytes[t]));
      again = again || room(tier) != planned.in_flight_bytes[t];
    }
  }
}

/// `in_order`: work is done as it is issued, so nothing is in use longer than planned but for transfers.
void take_what_is_used(Prepared& planned, std::uint64_t most_room, const LeastBudget& least, bool in_order) {
  Budgets& budgets = planned.plan.budgets;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto t = static_cast<std::size_t>(tier);
    std::uint64_t& budget = tier == Tier::device ? budgets.device_bytes : budgets.host_bytes;
    const std::uint64_t used = std::max(planned.plan.plan.peak_bytes[t], planned.cycle.plan.peak_bytes[t]);
    const std::uint64_t moves = most_out_of_time(planned, tier);
    const Traffic traffic = traffic_of(moves, used);
    std::uint64_t room = std::max(used / kSmallPart, moves / kAtOnce);
    if (traffic == kLittle) room = std::max(room, largest_durable(planned.code.blocks));
    room = round_up(traffic == kMuch ? most_room : std::min(most_room, room), budgets.frame_bytes);
    const std::uint64_t taken = std::max(used + room, tier == Tier::device ? least.device_bytes : least.host_bytes);
    if (taken < budget) {
      budget = taken;
      planned.in_flight_bytes[t] = room;
    }
    const std::uint64_t late = round_up(moves, budgets.frame_bytes);
    planned.used_bytes[t] = std::min(budget, used + (in_order ? late : std::max(room, late)));
  }
}

}  // namespace

std::uint64_t device_link_bytes(const StepCode& code, const Budgets& budgets, std::uint64_t most_room) {
  PlanInput input{.trace = &code.step, .blocks = &code.blocks, .budgets = budgets, .rates = {}};
  Pass pass{&code.step, {}};
  std::optional<DeviceLinks> links;
  Traffic expected = kNone;
  for (bool again = true; again;) {
    const auto room = [&] {
      return room_of(expected, code.blocks, budgets.device_bytes, budgets.frame_bytes, most_room);
    };
    input.in_flight_bytes[0] = room();
    links = plan_device_links(input);
    if (!links) return UINT64_MAX;
    pass.moved.bytes[static_cast<int>(Link::host_to_device)] = links->up_bytes;
    pass.moved.bytes[static_cast<int>(Link::device_to_host)] = links->down_bytes;
    expected = std::max(expected, traffic_of(out_of_time(pass, code.blocks, Tier::device), links->peak_bytes));
    again = room() != input.in_flight_bytes[0];
  }
  return links->up_bytes + links->down_bytes;
}

void plan_memory(Prepared& planned, std::uint64_t most_room, const LeastBudget& least, const TrainOptions& options) {
  plan_step(planned, most_room);
  planned.cycle = plan_commit(planned.code, plan_input(planned, planned.code.step, {}), planned.plan.plan);
  if (!options.lru) {
    const bool in_order = options.device == DeviceKind::cpu && options.shards.count == 1;
    return take_what_is_used(planned, most_room, least, in_order);
  }
  for (const Tier tier : {Tier::device, Tier::host})
    planned.used_bytes[static_cast<int>(tier)] = planned.plan.budgets.of(tier);
}

}  // namespace transload
