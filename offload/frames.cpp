#include "offload/frames.h"

#include "base/check.h"

namespace transload {

Frames::Frames(std::byte* base, std::uint64_t bytes, std::uint64_t frame_bytes)
    : next_(bytes / frame_bytes, kNoFrame),
      owner_(bytes / frame_bytes, kNoFrame),
      count_(static_cast<std::uint32_t>(bytes / frame_bytes)),
      limit_(count_),
      free_(count_) {
  table_ = {base, frame_bytes, next_.data()};
}

void Frames::claim(std::uint32_t frame, std::uint32_t owner) {
  owner_[frame] = owner;
  next_[frame] = kNoFrame;
  ++used_;
  if (frame < limit_) --free_;
}

void Frames::release(std::uint32_t frame) {
  owner_[frame] = kNoFrame;
  next_[frame] = kNoFrame;
  --used_;
  if (frame < limit_) ++free_;
}

std::uint32_t Frames::find_run(std::uint32_t n) const {
  std::uint32_t length = 0;
  for (std::uint32_t f = 0; f < limit_; ++f) {
    length = owner_[f] == kNoFrame ? length + 1 : 0;
    if (length == n) return f + 1 - n;
  }
  return kNoFrame;
}

std::uint32_t Frames::take(std::uint32_t n, std::uint32_t owner) {
  TRANSLOAD_CHECK(n > 0 && n <= free_ && owner != kNoFrame, "{} frames wanted, {} free", n, free_);
  const std::uint32_t run = find_run(n);
  std::uint32_t first = kNoFrame, last = kNoFrame;
  for (std::uint32_t f = run == kNoFrame ? 0 : run; n > 0; ++f) {
    if (owner_[f] != kNoFrame) continue;
    claim(f, owner);
    if (last == kNoFrame)
      first = f;
    else
      next_[last] = f;
    last = f;
    --n;
  }
  return first;
}

void Frames::give_back(std::uint32_t first) {
  while (first != kNoFrame) {
    const std::uint32_t next = next_[first];
    release(first);
    first = next;
  }
}

void Frames::set_limit(std::uint32_t limit) {
  TRANSLOAD_CHECK(limit <= count_, "limit {} of {} frames", limit, count_);
  limit_ = limit;
  free_ = 0;
  for (std::uint32_t f = 0; f < limit_; ++f) free_ += owner_[f] == kNoFrame ? 1 : 0;
}

std::uint32_t Frames::used_above_limit() const {
  for (std::uint32_t f = limit_; f < count_; ++f)
    if (owner_[f] != kNoFrame) return f;
  return kNoFrame;
}

std::uint32_t Frames::relocate(std::uint32_t* first, std::uint32_t frame) {
  TRANSLOAD_CHECK(free_ > 0 && owner_[frame] != kNoFrame, "relocating frame {} with {} free", frame, free_);
  std::uint32_t target = 0;
  while (owner_[target] != kNoFrame) ++target;
  const std::uint32_t follower = next_[frame];
  claim(target, owner_[frame]);
  release(frame);
  next_[target] = follower;
  if (*first == frame) {
    *first = target;
    return target;
  }
  std::uint32_t f = *first;
  while (next_[f] != frame) f = next_[f];
  next_[f] = target;
  return target;
}

}  // namespace transload
