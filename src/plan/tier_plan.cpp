#include "plan/tier_plan.h"

#include <algorithm>

#include "plan/choose_gaps.h"
#include "plan/gaps.h"
#include "plan/room_tree.h"

namespace transload {

namespace {

/// Prices tried for a byte written (a byte fetched costs 1).
constexpr double kWriteWeights[] = {0, 0.5, 1, 2};
/// Reads may not grow beyond this multiple of the fewest among the choices, however many writes that spares.
constexpr double kReadLimit = 1.05;

struct Traffic {
  std::uint64_t fetched = 0, written = 0;
  std::uint64_t total() const { return fetched + written; }
};

/// Walks the life of each version and tells `visit` what leaves and what is fetched.
class Walk {
 public:
  Walk(const TierProblem& problem, const GapProblem& gaps, const std::vector<char>& keep)
      : problem_(problem), gaps_(gaps), keep_(keep) {}

  /// on_drop(gap, written), on_write(block, position: due when it begins), on_fetch(gap).
  template <class Drop, class Write, class Fetch>
  void run(Drop&& on_drop, Write&& on_write, Fetch&& on_fetch) const {
    std::size_t g = 0;
    while (g < gaps_.gaps.size()) {
      const std::uint32_t block = gaps_.gaps[g].block;
      std::size_t end = g;
      while (end < gaps_.gaps.size() && gaps_.gaps[end].block == block) ++end;
      walk_block(block, g, end, on_drop, on_write, on_fetch);
      g = end;
    }
  }

 private:
  /// The version's life goes over the period's end: twice around, the second time counts.
  template <class Drop, class Write, class Fetch>
  void walk_block(std::uint32_t block, std::size_t begin, std::size_t end, Drop&& on_drop, Write&& on_write,
                  Fetch&& on_fetch) const {
    bool unwritten = false;
    for (int round = 0; round < 2; ++round) {
      const bool counts = round == 1;
      for (std::size_t g = begin; g < end; ++g) {
        const Gap& gap = gaps_.gaps[g];
        const std::uint32_t use = position_before(block, begin, g);
        const TierOp op = problem_.uses[use].op;
        if (makes_version(op)) unwritten = true;
        if (ends_copy(op)) unwritten = false;
        if (gap.alive && keep_[g] == 0) {
          const bool write = unwritten && gap.wanted_below;
          if (counts) on_drop(gap, write);
          if (write && counts) on_write(block, gap.from);
          unwritten = false;
        }
        const bool taken = problem_.uses[gap.next_use].op == TierOp::take;
        if (unwritten && (gap.flushed || taken)) {
          if (counts) on_write(block, gap.flushed ? flush_after(block, use) : gap.next_use);
          unwritten = false;
        }
        if (gap.fetch && keep_[g] == 0 && counts) on_fetch(gap);
      }
    }
  }

  /// The use that gap g follows: gap number i of a block follows its i-th use that is not a flush.
  std::uint32_t position_before(std::uint32_t block, std::size_t begin, std::size_t g) const {
    if (g > begin) return gaps_.gaps[g - 1].next_use;
    return gaps_.gaps[last_gap_of(block, begin)].next_use;
  }
  std::size_t last_gap_of(std::uint32_t block, std::size_t begin) const {
    std::size_t g = begin;
    while (g + 1 < gaps_.gaps.size() && gaps_.gaps[g + 1].block == block) ++g;
    return g;
  }
  std::uint32_t flush_after(std::uint32_t block, std::uint32_t use) const {
    const auto* first = gaps_.use_positions.data() + gaps_.first_use[block];
    const auto* last = gaps_.use_positions.data() + gaps_.first_use[block + 1];
    for (const auto* p = std::upper_bound(first, last, use); p != last; ++p)
      if (problem_.uses[*p].op == TierOp::flush) return *p;
    return *first;  // flushes before the first use follow the last one
  }

  const TierProblem& problem_;
  const GapProblem& gaps_;
  const std::vector<char>& keep_;
};

Traffic traffic_of(const TierProblem& problem, const GapProblem& gaps, const std::vector<char>& keep) {
  Traffic t;
  Walk(problem, gaps, keep)
      .run([](const Gap&, bool) {}, [&](std::uint32_t block, std::uint32_t) { t.written += problem.bytes[block]; },
           [&](const Gap& gap) { t.fetched += problem.bytes[gap.block]; });
  return t;
}

std::vector<char> best_choice(const TierProblem& problem, const GapProblem& gaps, Traffic& best) {
  std::vector<std::vector<char>> choices;
  std::vector<Traffic> traffic;
  std::uint64_t fewest_reads = UINT64_MAX;
  for (const double weight : kWriteWeights) {
    choices.push_back(choose_gaps(problem, gaps, weight));
    traffic.push_back(traffic_of(problem, gaps, choices.back()));
    fewest_reads = std::min(fewest_reads, traffic.back().fetched);
    if (traffic.back().total() == 0) break;
  }
  std::size_t winner = choices.size();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (static_cast<double>(traffic[i].fetched) > kReadLimit * static_cast<double>(fewest_reads)) continue;
    if (winner == choices.size() || traffic[i].total() < traffic[winner].total()) winner = i;
  }
  best = traffic[winner];
  return std::move(choices[winner]);
}

/// How many ticks ahead each fetch may go: in order of need each takes the room that is left before its use, after its
/// block left. Half of the room for transfers stays for write-backs on their way.
void find_leads(const TierProblem& problem, const std::vector<const Gap*>& fetched, std::uint32_t ticks,
                TierPlan& plan) {
  std::vector<std::uint64_t> free(problem.uses.size());
  for (std::size_t p = 0; p < free.size(); ++p) {
    const std::uint64_t taken = plan.occupied[p] + problem.in_flight / 2;
    free[p] = problem.usable[p] > taken ? problem.usable[p] - taken : 0;
  }
  RoomTree room(free);
  for (std::size_t i = 0; i < fetched.size(); ++i) {
    const Gap& gap = *fetched[i];
    if (gap.empty()) continue;
    const std::uint64_t frames = problem.frames[gap.block];
    const std::uint64_t from = room.earliest(gap.from, gap.to, frames);
    if (from >= gap.to) continue;
    const std::uint64_t n = problem.uses.size();
    room.take(from < n ? from : from - n, from < n ? gap.to : gap.to - n, frames);
    const std::uint64_t need = problem.uses[gap.next_use].tick + (gap.to >= n ? ticks : 0);
    const std::uint64_t at = problem.uses[from % n].tick + (from >= n ? ticks : 0);
    plan.fetches[i].lead_ticks = static_cast<std::uint32_t>(need - at);
  }
}

void occupy(const TierProblem& problem, const GapProblem& gaps, const std::vector<char>& keep, TierPlan& plan) {
  const std::size_t n = problem.uses.size();
  std::vector<std::int64_t> change(n + 1, 0);
  if (problem.may_evict) {
    for (std::size_t g = 0; g < keep.size(); ++g) {
      if (keep[g] == 0) continue;
      const Gap& gap = gaps.gaps[g];
      const auto frames = static_cast<std::int64_t>(problem.frames[gap.block]);
      change[gap.from] += frames;
      change[std::min<std::size_t>(gap.to, n)] -= frames;
      if (gap.to > n) {
        change[0] += frames;
        change[gap.to - n] -= frames;
      }
    }
  }
  plan.occupied = gaps.pinned;
  std::int64_t now = 0;
  for (std::size_t p = 0; p < n; ++p) {
    now += change[p];
    plan.occupied[p] += static_cast<std::uint64_t>(now);
  }
}

std::vector<bool> held_at_end(const TierProblem& problem, const GapProblem& gaps, const std::vector<char>& keep) {
  std::vector<bool> held(problem.frames.size());
  for (std::size_t g = 0; g < keep.size(); ++g)
    if (keep[g] != 0 && gaps.gaps[g].alive && gaps.gaps[g].to >= problem.uses.size()) held[gaps.gaps[g].block] = true;
  return held;
}

}  // namespace

TierPlan plan_tier(const TierProblem& problem, std::uint32_t ticks) {
  TierPlan plan;
  if (problem.uses.empty()) return plan;
  const GapProblem gaps = find_gaps(problem);
  plan.feasible = gaps.feasible;
  plan.worst_position = gaps.worst;
  plan.pinned_frames = gaps.pinned[gaps.worst];
  if (!plan.feasible) return plan;

  Traffic traffic;
  const std::vector<char> keep = best_choice(problem, gaps, traffic);
  plan.fetch_bytes = traffic.fetched;
  plan.write_bytes = traffic.written;
  occupy(problem, gaps, keep, plan);
  plan.held = held_at_end(problem, gaps, keep);

  std::vector<const Gap*> fetched;
  Walk(problem, gaps, keep)
      .run(
          [&](const Gap& gap, bool write) {
            plan.drops.push_back({gap.block, problem.uses[gap.last_use].tick, write});
          },
          [&](std::uint32_t block, std::uint32_t position) {
            plan.writes.push_back({block, problem.uses[position].tick});
          },
          [&](const Gap& gap) { fetched.push_back(&gap); });
  std::sort(fetched.begin(), fetched.end(), [](const Gap* a, const Gap* b) { return a->next_use < b->next_use; });
  for (const Gap* gap : fetched)
    plan.fetches.push_back({gap->block, gap->next_use, problem.uses[gap->next_use].tick, 0});
  find_leads(problem, fetched, ticks, plan);
  const auto by_tick = [](const auto& a, const auto& b) {
    return a.tick != b.tick ? a.tick < b.tick : a.block < b.block;
  };
  std::sort(plan.drops.begin(), plan.drops.end(), by_tick);
  std::sort(plan.writes.begin(), plan.writes.end(), by_tick);
  return plan;
}

}  // namespace transload
