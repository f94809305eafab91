#include "comm/star.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "comm/socket_io.h"

namespace transload {
namespace {

using Clock = std::chrono::steady_clock;

/// The first words of a connection, from a rank to rank 0.
struct Hello {
  std::uint64_t magic = 0x31'6f'6c'6c'65'68'6c'74;
  std::uint64_t token = 0;
  std::int32_t rank = 0, size = 0;
};
/// And the answer.
enum class Answer : std::uint32_t { welcome = 1, stranger, taken, other_size };

constexpr std::uint32_t kMostText = 1 * MiB;

std::string send_text(int fd, const std::string& text, Deadline deadline) {
  const auto length = static_cast<std::uint32_t>(text.size());
  if (std::string reason = send_all(fd, &length, sizeof(length), deadline); !reason.empty()) return reason;
  return send_all(fd, text.data(), text.size(), deadline);
}

std::string receive_text(int fd, std::string* text, std::uint32_t most, Deadline deadline) {
  std::uint32_t length = 0;
  if (std::string reason = receive_all(fd, &length, sizeof(length), deadline); !reason.empty()) return reason;
  if (length > most) return fmt::format("a text of {} bytes came", length);
  text->resize(length);
  return receive_all(fd, text->data(), length, deadline);
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

std::string names(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < 16; ++i) text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  return ranks.size() > 16 ? text + fmt::format(" and {} more", ranks.size() - 16) : text;
}

int bind_and_listen(int family, const sockaddr* address, socklen_t length) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd, address, length) == 0 && ::listen(fd, 1024) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket listen_on(int port, bool loopback) {
  int fd = -1;
  if (!loopback) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<std::uint16_t>(port));
    fd = bind_and_listen(AF_INET6, reinterpret_cast<sockaddr*>(&any), sizeof(any));
  }
  if (fd < 0) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    any.sin_port = htons(static_cast<std::uint16_t>(port));
    fd = bind_and_listen(AF_INET, reinterpret_cast<sockaddr*>(&any), sizeof(any));
  }
  if (fd >= 0) return Socket(fd);
  throw Error(fmt::format("Rank 0 cannot listen on port {} for the other ranks: {}. Set another with MASTER_PORT.",
                          port, std::strerror(errno)));
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  TRANSLOAD_CHECK(::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0, "errno {}", errno);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {"127.0.0.1"};
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[NI_MAXHOST] = "";
    if (::getnameinfo(one->ifa_addr, sizeof(sockaddr_in), text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  ::freeifaddrs(first);
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

Star::Star(StarOptions options)
    : rank_(options.rank), size_(options.size), patience_(options.patience), sockets_(rank_ == 0 ? size_ : 1) {
  if (rank_ == 0) {
    if (!options.listener.is_open()) options.listener = listen_on(options.port, is_loopback(options.hosts.at(0)));
    await_others(options);
  } else {
    connect_to_root(options);
  }
}

void Star::await_others(const StarOptions& options) {
  const Deadline deadline = Clock::now() + patience_;
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 1; r < size_; ++r)
      if (!sockets_[static_cast<std::size_t>(r)].is_open()) ranks.push_back(r);
    return ranks;
  };
  while (!missing().empty()) {
    pollfd one{options.listener.fd(), POLLIN, 0};
    if (::poll(&one, 1, poll_time(deadline)) == 0)
      throw Error(
          fmt::format("After {} the job of {} ranks is not complete: {} did not come to rank 0 (port {}). Were all "
                      "started, with the same address, port and number of ranks?",
                      format_duration(std::chrono::duration<double>(patience_).count()), size_, names(missing()),
                      port_of(options.listener)));
    if (const int fd = ::accept4(options.listener.fd(), nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
      admit(Socket(fd), options);
  }
}

void Star::admit(Socket socket, const StarOptions& options) {
  make_prompt(socket.fd());
  const Deadline soon = Clock::now() + std::chrono::seconds(2);
  Hello hello;
  if (!receive_all(socket.fd(), &hello, sizeof(hello), soon).empty() || hello.magic != Hello().magic) return;
  const bool in_range = hello.rank > 0 && hello.rank < size_;
  Answer answer = Answer::welcome;
  if (hello.token != options.token)
    answer = Answer::stranger;
  else if (hello.size != size_ || !in_range)
    answer = Answer::other_size;
  else if (sockets_[static_cast<std::size_t>(hello.rank)].is_open())
    answer = Answer::taken;
  if (!send_all(socket.fd(), &answer, sizeof(answer), soon).empty() || answer != Answer::welcome) return;
  sockets_[static_cast<std::size_t>(hello.rank)] = std::move(socket);
}

void Star::connect_to_root(const StarOptions& options) {
  const Deadline deadline = Clock::now() + patience_;
  const auto refuse = [&](const char* why) {
    throw Error(fmt::format("Rank {} of {} was turned away by rank 0 at {}:{}: {}.", rank_, size_, options.hosts.at(0),
                            options.port, why));
  };
  std::string reason = "no answer";
  for (std::size_t tries = 0; Clock::now() < deadline; ++tries) {
    const std::string& host = options.hosts[tries % options.hosts.size()];
    const Deadline soon = std::min(deadline, Clock::now() + std::chrono::seconds(2));
    Socket socket(connect_to(host, options.port, soon, &reason));
    const Hello hello{Hello().magic, options.token, rank_, size_};
    Answer answer{};
    if (socket.is_open()) {
      make_prompt(socket.fd());
      reason = send_all(socket.fd(), &hello, sizeof(hello), deadline);
      if (reason.empty()) reason = receive_all(socket.fd(), &answer, sizeof(answer), deadline);
    }
    if (answer == Answer::stranger) refuse("another job listens there");
    if (answer == Answer::taken) refuse("this rank has come before; two processes have the same rank");
    if (answer == Answer::other_size) refuse("it was started with another number of ranks");
    if (answer == Answer::welcome) {
      sockets_[0] = std::move(socket);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw Error(
      fmt::format("Rank {} of {} did not reach rank 0 at {}:{} within {}: {}. Is rank 0 running, and are its address "
                  "and port right?",
                  rank_, size_, options.hosts.at(0), options.port,
                  format_duration(std::chrono::duration<double>(patience_).count()), reason));
}

std::vector<std::string> Star::all_gather(const std::string& mine) {
  TRANSLOAD_CHECK(mine.size() <= kMostText, "{} bytes", mine.size());
  const Deadline deadline = Clock::now() + patience_;
  const auto check = [](int rank, const std::string& reason) {
    if (!reason.empty())
      throw RankLostError(fmt::format("Rank {} was lost while the job was set up: {}.", rank, reason), rank);
  };
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  all[static_cast<std::size_t>(rank_)] = mine;
  if (rank_ != 0) {
    check(0, send_text(sockets_[0].fd(), mine, deadline));
    for (std::string& text : all) check(0, receive_text(sockets_[0].fd(), &text, kMostText, deadline));
    return all;
  }
  for (int r = 1; r < size_; ++r)
    check(r, receive_text(sockets_[static_cast<std::size_t>(r)].fd(), &all[static_cast<std::size_t>(r)], kMostText,
                          deadline));
  for (int r = 1; r < size_; ++r)
    for (const std::string& text : all) check(r, send_text(sockets_[static_cast<std::size_t>(r)].fd(), text, deadline));
  return all;
}

std::string Star::own_address() const {
  for (const Socket& socket : sockets_)
    if (socket.is_open()) {
      const std::string address = address_of(socket.fd());
      if (!is_loopback(address) || &socket == &sockets_.back()) return address;
    }
  return "127.0.0.1";
}

}  // namespace transload
