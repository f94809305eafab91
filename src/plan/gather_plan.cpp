#include "plan/gather_plan.h"

#include <algorithm>

#include "base/check.h"

namespace transload {

namespace {

constexpr std::size_t kNever = SIZE_MAX;

/// For each use the next one of the same chunk.
std::vector<std::size_t> next_uses(std::span<const ChunkId> uses) {
  std::vector<std::size_t> next(uses.size(), kNever), seen;
  for (std::size_t i = uses.size(); i-- > 0;) {
    if (seen.size() <= uses[i].value) seen.resize(uses[i].value + 1, kNever);
    next[i] = seen[uses[i].value];
    seen[uses[i].value] = i;
  }
  return next;
}

/// The chunks that are gathered, as the uses go by.
class Gathered {
 public:
  Gathered(GatherPlan& plan, const std::vector<std::size_t>& next) : plan_(plan), next_(next) {}

  bool has(ChunkId chunk) const { return find(chunk) != held_.end(); }
  /// Gathers `chunk`, whose next use is `at`, before use `now`; false where that would take the place of something
  /// that is needed sooner. What it takes the place of was used for the last time before `now`.
  bool gather(ChunkId chunk, std::size_t at, std::size_t now) {
    if (held_.size() == plan_.room && !drop_one(at, now)) return false;
    held_.push_back({chunk, kNever, at});
    plan_.uses[now].gather.push_back(chunk);
    return true;
  }
  void use(std::size_t i) {
    const auto it = find(plan_.uses[i].chunk);
    it->last_use = i;
    it->next_use = next_[i];
    plan_.uses[i].last = it->next_use == kNever;
    if (plan_.uses[i].last) held_.erase(it);
  }

 private:
  struct Held {
    ChunkId chunk;
    std::size_t last_use, next_use;  // kNever: not used yet, not used again
  };
  std::vector<Held>::iterator find(ChunkId chunk) {
    return std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.chunk == chunk; });
  }
  std::vector<Held>::const_iterator find(ChunkId chunk) const { return const_cast<Gathered*>(this)->find(chunk); }

  /// Of the chunks used already, but not at `now`, the one that is needed last, if that is after `at`.
  bool drop_one(std::size_t at, std::size_t now) {
    auto victim = held_.end();
    for (auto it = held_.begin(); it != held_.end(); ++it)
      if (it->last_use != kNever && it->next_use > std::max(at, now) &&
          (victim == held_.end() || it->next_use > victim->next_use))
        victim = it;
    if (victim == held_.end()) return false;
    plan_.uses[victim->last_use].last = true;
    held_.erase(victim);
    return true;
  }

  GatherPlan& plan_;
  const std::vector<std::size_t>& next_;
  std::vector<Held> held_;
};

}  // namespace

GatherPlan plan_gathers(std::span<const ChunkId> uses, std::size_t room) {
  TRANSLOAD_CHECK(room > 0, "no room for a gathered chunk");
  GatherPlan plan;
  plan.room = room;
  for (const ChunkId chunk : uses) plan.uses.push_back({chunk, {}, true});
  const std::vector<std::size_t> next = next_uses(uses);
  Gathered gathered(plan, next);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (!gathered.has(uses[i])) TRANSLOAD_CHECK(gathered.gather(uses[i], i, i), "no room for the gather of use {}", i);
    std::size_t ahead = i;  // the first use of another chunk
    while (ahead < uses.size() && uses[ahead] == uses[i]) ++ahead;
    if (ahead < uses.size() && !gathered.has(uses[ahead])) gathered.gather(uses[ahead], ahead, i);
    gathered.use(i);
  }
  return plan;
}

}  // namespace transload
