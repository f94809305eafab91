// Wire: a library that carries messages between processes (Gloo, MPI), and makes mailboxes over itself. Each is
// confined to its own file; a build without it has a function here that says so.
#pragma once

#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/mailbox.h"
#include "comm/monitor.h"
#include "comm/star.h"

namespace transload {

class Wire {
 public:
  virtual ~Wire() = default;
  virtual const char* name() const = 0;
  /// `channel`: 0 or 1, one mailbox each.
  virtual std::unique_ptr<Mailbox> make_mailbox(int channel, std::uint64_t room_bytes, Monitor& monitor) = 0;
  /// A rank is lost: the destructor must not wait for it.
  virtual void abandon() {}
};

/// All ranks connect, by addresses that pass over the star. Error in a build without Gloo.
std::unique_ptr<Wire> connect_gloo(Star& star, std::chrono::milliseconds timeout);

/// MPI_Init, and the star of its ranks. Error in a build without MPI, and where MPI knows of fewer ranks than the
/// launcher's variables.
struct MpiStart {
  Place place;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<Star> star;
};
MpiStart start_mpi(const Launch& launch, std::chrono::milliseconds timeout);

}  // namespace transload
