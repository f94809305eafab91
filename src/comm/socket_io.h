// Bytes through a socket before a deadline, and the few calls of sockets that star.cpp needs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace transload {

using Deadline = std::chrono::steady_clock::time_point;

/// Milliseconds until then, for poll: 0 when it has passed.
int poll_time(Deadline deadline);
/// All bytes, or the reason why not; empty: done. The socket does not block.
std::string send_all(int fd, const void* data, std::size_t bytes, Deadline deadline);
std::string receive_all(int fd, void* data, std::size_t bytes, Deadline deadline);
/// The connection to host:port, or −1 and the reason.
int connect_to(const std::string& host, int port, Deadline deadline, std::string* reason);
void make_prompt(int fd);  ///< does not block, sends at once
/// The address of this end of a connection, without the port.
std::string address_of(int fd);

}  // namespace transload
