#include "comm/shared_mailbox.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "base/size.h"

namespace transload {
namespace {

constexpr std::uint64_t kLine = 128;  // counters of two ranks share no line, nor the pair that is fetched together
constexpr int kSpins = 200;
constexpr long kLook_ns = 100'000'000;

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec most{0, kLook_ns};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &most, nullptr, 0);
}

void advance(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.store(value, std::memory_order_release);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool reached(std::uint32_t now, std::uint32_t target) { return static_cast<std::int32_t>(now - target) >= 0; }

}  // namespace

struct SharedMailbox::Counters {
  alignas(kLine) std::atomic<std::uint32_t> posted;
  alignas(kLine) std::atomic<std::uint32_t> taken;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

std::uint64_t SharedMailbox::bytes_for(int size, std::uint64_t room_bytes) {
  return static_cast<std::uint64_t>(size) * (sizeof(Counters) + 2 * room_bytes);
}

SharedMailbox::SharedMailbox(std::byte* begin, int rank, int size, std::uint64_t room_bytes, Monitor& monitor,
                             std::shared_ptr<SharedSegment> keep)
    : begin_(begin), rank_(rank), size_(size), room_bytes_(room_bytes), monitor_(monitor), keep_(std::move(keep)) {}

std::uint64_t SharedMailbox::memory_bytes() const { return bytes_for(1, room_bytes_); }

SharedMailbox::Counters& SharedMailbox::counters(int rank) const { return reinterpret_cast<Counters*>(begin_)[rank]; }

std::byte* SharedMailbox::slot(int rank, std::uint32_t round) const {
  std::byte* const slots = begin_ + static_cast<std::uint64_t>(size_) * sizeof(Counters);
  return slots + (static_cast<std::uint64_t>(rank) * 2 + round % 2) * room_bytes_;
}

// The counter is looked at once more after a rank was found lost or gone: it may have posted before it went.
void SharedMailbox::await(std::atomic<std::uint32_t>& counter, std::uint32_t target, int whose) {
  for (int spin = 0; spin < kSpins; ++spin)
    if (reached(counter.load(std::memory_order_acquire), target)) return;
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    const std::uint32_t now = counter.load(std::memory_order_acquire);
    if (reached(now, target)) return;
    futex_wait(counter, now);
    if (reached(counter.load(std::memory_order_acquire), target)) return;
    monitor_.check(whose);
    if (std::chrono::steady_clock::now() - began > monitor_.patience())
      monitor_.explain(whose, fmt::format("it lives and did not come to this operation in {}.",
                                          format_duration(std::chrono::duration<double>(monitor_.patience()).count())));
  }
}

std::byte* SharedMailbox::begin(const Round& round) {
  if (monitor_.lost()) monitor_.check(rank_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) await(counters(r).taken, round.number - 1, r);
  return slot(rank_, round.number);
}

void SharedMailbox::post(const Round& round) { advance(counters(rank_).posted, round.number + 1); }

const std::byte* SharedMailbox::take(const Round& round, int from) {
  await(counters(from).posted, round.number + 1, from);
  return slot(from, round.number) + static_cast<std::uint64_t>(rank_) * round.stride;
}

void SharedMailbox::end(const Round& round) { advance(counters(rank_).taken, round.number + 1); }

}  // namespace transload
