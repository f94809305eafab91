// Timeline: what happened in one step and when: work on each link and processor (spans), waits with their cause, and
// memory in use by what it holds. Streams, engine and step code fill it; the run record reads it after the step.
//
// Invariants: room is taken at construction, nothing is allocated in a step; what does not fit is counted in lost().
// Between end() and begin() nothing is kept. Times are of the host's steady clock, in nanoseconds.
// Threading: on() and add() from any thread. begin(), end() and the readers from the issuing thread; readers after
// end() only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/lane.h"

namespace transload {

/// One piece of work; on processors, tasks of the same name that follow each other at once are one span.
struct Span {
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t bytes = 0;     ///< links
  const char* name = nullptr;  ///< processors: of the operation; lives as long as the program
  std::int32_t index = -1;     ///< of its layer or chunk; −1: none
  std::uint32_t tasks = 1;
  BlockId block;  ///< links
  Lane lane = Lane::compute;
  bool ahead = false;  ///< a fetch that the plan asked for
};

struct Wait {
  std::uint64_t begin_ns = 0, end_ns = 0;
  BlockId block;
  Lane lane = Lane::issue;  ///< who waits
  WaitCause cause = WaitCause::work;
  Tier tier = Tier::host;     ///< room, use, content: where
  Lane source = Lane::issue;  ///< content: the link; issue: not known
};

/// What memory holds.
enum class MemoryKind : std::uint8_t {
  weight,
  residue,
  moment1,
  moment2,
  gradient,
  partial,
  kept,
  gathered,  ///< weights of all ranks
  local,     ///< this rank's gradient of all ranks' elements, until it is summed
  other,
  in_flight,  ///< content that arrives, or leaves and cannot be used until it has left
  padding,    ///< the rest of a block's last frame
  workspace,
};
inline constexpr int kMemoryUses = 13;
constexpr const char* name_of(MemoryKind use) {
  constexpr const char* names[kMemoryUses] = {"weight",    "residue", "moment1",  "moment2", "gradient",
                                              "partial",   "kept",    "gathered", "local",   "other",
                                              "in_flight", "padding", "workspace"};
  return names[static_cast<int>(use)];
}
/// Of a block in this plane.
MemoryKind use_of(std::string_view plane);

using MemoryBytes = std::array<std::uint64_t, kMemoryUses>;

/// The use of a tier from this moment on.
struct MemorySample {
  std::uint64_t at_ns = 0;
  Tier tier = Tier::host;
  std::uint64_t used_bytes = 0;  ///< frames and workspace in use, counted apart from `bytes`, which they are the sum of
  MemoryBytes bytes{};
};

class Timeline {
 public:
  struct Room {
    std::size_t spans = 0, waits = 0, samples = 0;
  };
  /// Room for a step of so many accesses, bounded.
  static Room room_for(std::size_t accesses);
  explicit Timeline(Room room);

  void begin();
  void end();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void add(const Span& span);
  void add(const Wait& wait);
  void add(const MemorySample& sample);

  std::uint64_t begin_ns() const { return begin_ns_; }
  const std::vector<Span>& spans() const { return spans_; }  ///< of a lane: in order of their ends
  const std::vector<Wait>& waits() const { return waits_; }
  const std::vector<MemorySample>& samples() const { return samples_; }
  std::uint64_t lost() const { return lost_; }  ///< for lack of room

 private:
  bool joined(const Span& span);
  template <class T>
  void keep(std::vector<T>& all, const T& one);
  std::mutex mutex_;
  std::atomic<bool> on_{false};
  std::uint64_t begin_ns_ = 0, lost_ = 0;
  std::vector<Span> spans_;
  std::vector<Wait> waits_;
  std::vector<MemorySample> samples_;
  std::array<std::size_t, kLanes> last_{};  // place of a lane's last span, plus one; 0: none
};

/// Notes the time from construction to destruction as a wait. `timeline` may be null.
class WaitNote {
 public:
  WaitNote(Timeline* timeline, const Wait& wait) : timeline_(timeline), wait_(wait) {
    if (timeline_ != nullptr) wait_.begin_ns = host_clock_ns();
  }
  ~WaitNote() {
    if (timeline_ == nullptr) return;
    wait_.end_ns = host_clock_ns();
    timeline_->add(wait_);
  }
  WaitNote(const WaitNote&) = delete;

 private:
  Timeline* timeline_;
  Wait wait_;
};

}  // namespace transload
