#include "base/timeline.h"

#include <algorithm>

namespace transload {

namespace {

constexpr std::uint64_t kJoinGapNs = 2000;  // less is the cost of beginning a task

constexpr std::size_t kMostSpans = 1 << 16, kMostWaits = 1 << 14, kMostSamples = 1 << 15;

}  // namespace

MemoryKind use_of(std::string_view plane) {
  for (int use = 0; use < static_cast<int>(MemoryKind::other); ++use)
    if (plane == name_of(static_cast<MemoryKind>(use))) return static_cast<MemoryKind>(use);
  return MemoryKind::other;
}

Timeline::Room Timeline::room_for(std::size_t accesses) {
  return {.spans = std::clamp<std::size_t>(8 * accesses, 1024, kMostSpans),
          .waits = std::clamp<std::size_t>(4 * accesses, 1024, kMostWaits),
          .samples = std::clamp<std::size_t>(8 * accesses, 1024, kMostSamples)};
}

Timeline::Timeline(Room room) {
  spans_.reserve(room.spans);
  waits_.reserve(room.waits);
  samples_.reserve(room.samples);
}

void Timeline::begin() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
  waits_.clear();
  samples_.clear();
  last_.fill(0);
  lost_ = 0;
  begin_ns_ = host_clock_ns();
  on_ = true;
}

void Timeline::end() {
  const std::lock_guard lock(mutex_);
  on_ = false;
}

template <class T>
void Timeline::keep(std::vector<T>& all, const T& one) {
  if (all.size() < all.capacity())
    all.push_back(one);
  else
    ++lost_;
}

bool Timeline::joined(const Span& span) {
  const std::size_t last = last_[static_cast<std::size_t>(span.lane)];
  if (span.name == nullptr || last == 0) return false;
  Span& before = spans_[last - 1];
  if (before.name != span.name || before.index != span.index || span.begin_ns > before.end_ns + kJoinGapNs)
    return false;
  before.end_ns = std::max(before.end_ns, span.end_ns);
  before.tasks += span.tasks;
  return true;
}

void Timeline::add(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (!on() || joined(span)) return;
  const std::size_t before = spans_.size();
  keep(spans_, span);
  if (spans_.size() > before) last_[static_cast<std::size_t>(span.lane)] = spans_.size();
}

void Timeline::add(const Wait& wait) {
  const std::lock_guard lock(mutex_);
  if (on()) keep(waits_, wait);
}

void Timeline::add(const MemorySample& sample) {
  const std::lock_guard lock(mutex_);
  if (on()) keep(samples_, sample);
}

}  // namespace transload
