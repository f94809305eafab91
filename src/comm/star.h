// Star: a socket between rank 0 and every other rank. It brings the ranks together at the start, carries the small
// exchanges that set the transports up, and then the heartbeats (monitor.h). Debian's Gloo has no rendezvous over TCP
// of its own; chunks never pass here.
//
// Construction waits at most `patience` for all ranks, and says who did not come. Threading: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace transload {

/// A descriptor with an owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A socket that listens on `port` (0: one that the system chooses): of every interface, or of the loopback's alone.
Socket listen_on(int port, bool loopback);
int port_of(const Socket& socket);
/// Addresses of this machine that others may reach, the loopback's last.
std::vector<std::string> own_addresses();

struct StarOptions {
  int rank = 0, size = 1;
  std::vector<std::string> hosts;  ///< rank 0's names or addresses, tried in turn
  int port = 0;
  std::chrono::milliseconds patience{60'000};
  std::uint64_t token = 0;  ///< equal on all ranks of a job: strangers are turned away
  Socket listener;          ///< rank 0: already listening; closed: one is made
};

class Star {
 public:
  explicit Star(StarOptions options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Every rank's text, by rank; at most 1 MiB each.
  std::vector<std::string> all_gather(const std::string& mine);
  /// The address of this rank that rank 0's node reaches (rank 0: that the others reach).
  std::string own_address() const;
  /// Rank 0: to each rank (none to itself); others: to rank 0 alone, at [0].
  const std::vector<Socket>& sockets() const { return sockets_; }

 private:
  void await_others(const StarOptions& options);
  void admit(Socket socket, const StarOptions& options);
  void connect_to_root(const StarOptions& options);

  int rank_, size_;
  std::chrono::milliseconds patience_;
  std::vector<Socket> sockets_;
};

}  // namespace transload
