#include "comm/monitor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "comm/socket_io.h"

namespace transload {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum class Word : std::uint32_t { alive = 1, left, failed, lost };

/// What goes over a connection: a word about a rank.
struct Message {
  Word word{};
  std::int32_t rank = 0;
  std::uint64_t step = 0;
  std::int64_t chunk = -1;
  std::array<char, 64> operation{};
  std::array<char, 420> text{};  ///< failed: why; lost: the whole sentence
};
static_assert(sizeof(Message) <= 512);

template <std::size_t N>
void put(std::array<char, N>& to, const std::string& text) {
  const std::size_t n = std::min(N - 1, text.size());
  std::copy_n(text.begin(), n, to.begin());
  to[n] = '\0';
}

std::string doing(const Message& m) {
  if (m.operation[0] == '\0') return {};
  const std::string chunk = m.chunk < 0 ? "" : fmt::format(", chunk {}", m.chunk);
  return fmt::format(" It was at step {}{}: {}.", m.step, chunk, m.operation.data());
}

/// A connection, and the rank at its other end.
struct Peer {
  int rank = 0;
  int fd = -1;
  bool open = true;
  Clock::time_point heard = Clock::now();
  Message last;
  std::string incoming, outgoing;

  void send(const Message& message) {
    if (open) outgoing.append(reinterpret_cast<const char*>(&message), sizeof(message));
  }
  /// As much as the socket takes now.
  void flush() {
    while (open && !outgoing.empty()) {
      const ssize_t n = ::send(fd, outgoing.data(), outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;  // full, or broken, which reading finds
      outgoing.erase(0, static_cast<std::size_t>(n));
    }
  }
  /// What has come; false: the connection is at its end.
  bool receive() {
    char buffer[8 * sizeof(Message)];
    for (;;) {
      const ssize_t n = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n > 0)
        incoming.append(buffer, static_cast<std::size_t>(n));
      else if (n == 0)
        return false;
      else if (errno != EINTR)
        return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
};

}  // namespace

struct Monitor::Impl {
  Impl(Monitor& monitor, std::unique_ptr<Star> star_in);
  ~Impl();
  void run();
  void wake() const;
  bool all_left() const {
    return std::all_of(left.begin(), left.end(), [](const auto& l) { return l.has_value(); });
  }

  // All below with the mutex held.
  void beat(Clock::time_point now);
  void listen(Peer& peer, Clock::time_point now);
  void hear(Peer& peer, const Message& message, Clock::time_point now);
  void ended(Peer& peer, Clock::time_point now);
  void judge(Clock::time_point now);
  void declare(int rank, const std::string& sentence);
  void tell(const Message& message, const Peer* except = nullptr);
  Message about_me(Word word) const;

  Monitor& self;
  const std::unique_ptr<Star> star;
  const milliseconds interval;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Peer> peers;
  std::vector<std::optional<Clock::time_point>> left;  ///< by rank: when it left
  Status status;
  bool fresh = false;  ///< the status was published and not yet told
  bool stop = false;
  std::optional<Message> verdict;
  std::map<int, std::function<void()>> on_loss;  ///< each goes when it has been called
  int numbers = 0;
  int wake_fd = -1;
  std::thread thread;
};

constexpr milliseconds kLeastPause{10};  // between two messages because of publish

Monitor::Impl::Impl(Monitor& monitor, std::unique_ptr<Star> star_in)
    : self(monitor),
      star(std::move(star_in)),
      interval(std::clamp(monitor.timeout_ / 10, milliseconds(20), milliseconds(1000))),
      left(static_cast<std::size_t>(star->size())),
      wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TRANSLOAD_CHECK(wake_fd >= 0, "eventfd: errno {}", errno);
  for (std::size_t r = 0; r < star->sockets().size(); ++r) {
    if (!star->sockets()[r].is_open()) continue;
    Peer peer;
    peer.rank = static_cast<int>(r);
    peer.fd = star->sockets()[r].fd();
    peers.push_back(std::move(peer));
  }
  thread = std::thread([this] { run(); });
}

Monitor::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  wake();
  thread.join();
  ::close(wake_fd);
}

void Monitor::Impl::wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_fd, &one, sizeof(one));
}

// Hears first and judges after, so that what waited in a socket while this process itself stood still counts.
void Monitor::Impl::run() {
  Clock::time_point next_beat = Clock::now(), last_turn = Clock::now(), may_wake = Clock::now();
  std::vector<pollfd> fds;
  std::unique_lock lock(mutex);
  for (;;) {
    const Clock::time_point now = Clock::now();
    for (Peer& peer : peers) listen(peer, now);
    if (now - last_turn < self.timeout_ / 2) judge(now);
    last_turn = now;
    if (now >= next_beat || (fresh && now >= may_wake)) {
      beat(now);
      next_beat = now + interval;
      may_wake = now + kLeastPause;
    }
    for (Peer& peer : peers) peer.flush();
    changed.notify_all();
    if (verdict)
      for (auto& [number, wake_waiters] : std::exchange(on_loss, {})) wake_waiters();
    if (stop) return;
    fds.clear();
    fds.push_back({wake_fd, POLLIN, 0});
    for (const Peer& peer : peers)
      if (peer.open) fds.push_back({peer.fd, static_cast<short>(POLLIN | (peer.outgoing.empty() ? 0 : POLLOUT)), 0});
    const Clock::time_point until = fresh ? std::min(next_beat, may_wake) : next_beat;
    lock.unlock();
    ::poll(fds.data(), fds.size(), poll_time(until));
    std::uint64_t count = 0;
    (void)!::read(wake_fd, &count, sizeof(count));
    lock.lock();
  }
}

Message Monitor::Impl::about_me(Word word) const {
  Message m;
  m.word = word;
  m.rank = star->rank();
  m.step = status.step;
  m.chunk = status.chunk;
  put(m.operation, status.operation);
  return m;
}

void Monitor::Impl::tell(const Message& message, const Peer* except) {
  for (Peer& peer : peers)
    if (&peer != except) peer.send(message);
}

void Monitor::Impl::beat(Clock::time_point) {
  const Message message = about_me(Word::alive);
  for (Peer& peer : peers)
    if (peer.outgoing.empty()) peer.send(message);  // a rank that does not read is not sent more
  fresh = false;
}

void Monitor::Impl::listen(Peer& peer, Clock::time_point now) {
  if (!peer.open) return;
  const bool more = peer.receive();
  std::size_t at = 0;
  for (; peer.incoming.size() - at >= sizeof(Message); at += sizeof(Message)) {
    Message message;
    std::memcpy(&message, peer.incoming.data() + at, sizeof(message));
    hear(peer, message, now);
  }
  peer.incoming.erase(0, at);
  if (!more) ended(peer, now);
}

void Monitor::Impl::hear(Peer& peer, const Message& message, Clock::time_point now) {
  peer.heard = now;
  if (message.rank == peer.rank) peer.last = message;
  switch (message.word) {
    case Word::alive:
      return;
    case Word::left:
      left.at(static_cast<std::size_t>(message.rank)) = now;
      if (star->rank() == 0) tell(message, &peer);
      return;
    case Word::failed:
      return declare(message.rank,
                     fmt::format("Rank {} failed: {}{}", message.rank, message.text.data(), doing(message)));
    case Word::lost:
      return declare(message.rank, message.text.data());
  }
}

void Monitor::Impl::ended(Peer& peer, Clock::time_point) {
  peer.open = false;
  if (left[static_cast<std::size_t>(peer.rank)]) return;
  declare(peer.rank, fmt::format("Rank {} is lost: its process has ended.{}", peer.rank, doing(peer.last)));
}

void Monitor::Impl::judge(Clock::time_point now) {
  for (const Peer& peer : peers) {
    const auto silent = now - peer.heard;
    if (!peer.open || silent < self.timeout_ || left[static_cast<std::size_t>(peer.rank)]) continue;
    declare(peer.rank,
            fmt::format("Rank {} is lost: no sign of life for {:.1f} s (it stands still, or its machine or network "
                        "is gone).{}",
                        peer.rank, std::chrono::duration<double>(silent).count(), doing(peer.last)));
  }
}

// The first verdict stays. Rank 0 tells the others; another rank that judges rank 0 need not, they see it as well.
void Monitor::Impl::declare(int rank, const std::string& sentence) {
  if (verdict) return;
  Message message;
  message.word = Word::lost;
  message.rank = rank;
  put(message.text, sentence);
  verdict = message;
  self.lost_.store(true, std::memory_order_release);
  if (star->rank() == 0) tell(message);
}

Monitor::Monitor(std::unique_ptr<Star> star, milliseconds timeout)
    : timeout_(timeout), impl_(std::make_unique<Impl>(*this, std::move(star))) {}

Monitor::~Monitor() = default;

void Monitor::publish(const Status& status) {
  bool first = false;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->status = status;
    first = !std::exchange(impl_->fresh, true);
  }
  if (first) impl_->wake();
}

// Waits until it has been sent: the process may end right after.
void Monitor::fail(const std::string& why) {
  std::unique_lock lock(impl_->mutex);
  if (impl_->verdict) return;
  Message message = impl_->about_me(Word::failed);
  put(message.text, why);
  impl_->tell(message);
  impl_->declare(message.rank, fmt::format("Rank {} failed: {}{}", message.rank, why, doing(message)));
  impl_->wake();
  impl_->changed.wait_for(lock, timeout_, [&] {
    return std::all_of(impl_->peers.begin(), impl_->peers.end(),
                       [](const Peer& p) { return !p.open || p.outgoing.empty(); });
  });
}

void Monitor::leave() {
  std::unique_lock lock(impl_->mutex);
  auto& mine = impl_->left[static_cast<std::size_t>(impl_->star->rank())];
  if (!mine && !impl_->verdict) {
    mine = Clock::now();
    impl_->tell(impl_->about_me(Word::left));
    impl_->wake();
  }
  impl_->changed.wait_for(lock, timeout_, [&] { return impl_->verdict || impl_->all_left(); });
  // What rank 0 has to say still goes out.
  impl_->changed.wait_for(lock, milliseconds(200), [&] {
    return std::all_of(impl_->peers.begin(), impl_->peers.end(),
                       [](const Peer& p) { return !p.open || p.outgoing.empty(); });
  });
}

void Monitor::check(int waited_for) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->verdict) throw RankLostError(impl_->verdict->text.data(), impl_->verdict->rank);
  const auto& left = impl_->left[static_cast<std::size_t>(waited_for)];
  if (!left || Clock::now() - *left < timeout_) return;
  impl_->declare(waited_for, fmt::format("Rank {} has ended and is still waited for.", waited_for));
  impl_->wake();
  throw RankLostError(impl_->verdict->text.data(), waited_for);
}

void Monitor::explain(int rank, const std::string& what) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait_for(lock, timeout_ + impl_->interval, [&] { return impl_->verdict.has_value(); });
  impl_->declare(rank, fmt::format("Rank {} is lost: {}", rank, what));
  impl_->wake();
  throw RankLostError(impl_->verdict->text.data(), impl_->verdict->rank);
}

int Monitor::on_loss(std::function<void()> wake) {
  const std::lock_guard lock(impl_->mutex);
  impl_->on_loss[++impl_->numbers] = std::move(wake);
  impl_->wake();
  return impl_->numbers;
}

void Monitor::forget(int number) {
  const std::lock_guard lock(impl_->mutex);
  impl_->on_loss.erase(number);
}

}  // namespace transload
