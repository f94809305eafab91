#include "comm/socket_io.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace transload {
namespace {

// Waits until `events` are there; the reason why not.
std::string ready(int fd, short events, Deadline deadline) {
  pollfd one{fd, events, 0};
  for (;;) {
    const int n = ::poll(&one, 1, poll_time(deadline));
    if (n > 0) return {};
    if (n == 0) return "nothing came in time";
    if (errno != EINTR) return std::strerror(errno);
  }
}

template <class Call>
std::string move_all(int fd, std::size_t bytes, short events, Deadline deadline, Call&& call) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = call(done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return "the connection was closed";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (std::string reason = ready(fd, events, deadline); !reason.empty()) return reason;
    } else if (errno != EINTR) {
      return std::strerror(errno);
    }
  }
  return {};
}

int connect_address(const addrinfo& address, Deadline deadline, std::string* reason) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    *reason = std::strerror(errno);
    return -1;
  }
  int error = 0;
  if (::connect(fd, address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    *reason = ready(fd, POLLOUT, deadline);
    socklen_t length = sizeof(error);
    if (reason->empty() && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  if (error == 0 && reason->empty()) return fd;
  if (reason->empty()) *reason = std::strerror(error);
  ::close(fd);
  return -1;
}

}  // namespace

int poll_time(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

std::string send_all(int fd, const void* data, std::size_t bytes, Deadline deadline) {
  return move_all(fd, bytes, POLLOUT, deadline, [&](std::size_t done) {
    return ::send(fd, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
  });
}

std::string receive_all(int fd, void* data, std::size_t bytes, Deadline deadline) {
  return move_all(fd, bytes, POLLIN, deadline,
                  [&](std::size_t done) { return ::recv(fd, static_cast<char*>(data) + done, bytes - done, 0); });
}

int connect_to(const std::string& host, int port, Deadline deadline, std::string* reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    *reason = ::gai_strerror(error);
    return -1;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    reason->clear();
    if (const int fd = connect_address(*address, deadline, reason); fd >= 0) return fd;
  }
  return -1;
}

void make_prompt(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

std::string address_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "127.0.0.1";
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return "127.0.0.1";
  const std::string name = text;  // an IPv4 peer of a socket of both kinds reads ::ffff:a.b.c.d
  return name.starts_with("::ffff:") ? name.substr(7) : name;
}

}  // namespace transload
