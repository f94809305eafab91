// What carries requests to the kernel: io_uring (uring_backend.cpp) or a pool of threads that call preadv and pwritev
// (thread_backend.cpp). A backend moves bytes and reports what the kernel said, nothing more: splitting, continuing
// after short counts, checksums and errors are IoQueue's.
//
// Threading: one thread (the queue's) constructs, starts, waits and destroys; wake() from any thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/os.h"

namespace transload {

/// A part of a block on its way. Owned by the queue; the backend holds it from start() until wait() returns it.
struct IoRequest {
  bool write = false;
  const os::File* file = nullptr;
  std::uint64_t offset = 0;  ///< in the file, of what is left
  std::uint64_t bytes = 0;   ///< what is left
  std::span<iovec> pieces;   ///< what is left
  std::int64_t result = 0;   ///< bytes moved or -errno
  std::int64_t most = 0;     ///< report no more than this (a fault that shortens)
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  /// At most `depth` requests at a time. Never waits for I/O.
  virtual void start(IoRequest* request) = 0;
  /// Fills `finished` with requests whose result is set, and returns how many. `block`: waits for one or for wake().
  /// Everything started is with the kernel when it returns.
  virtual std::size_t wait(bool block, std::span<IoRequest*> finished) = 0;
  virtual void wake() = 0;
};

/// Null, and why in `refusal`, where io_uring does not do what it must: decided by reading the beginning of `probe`.
std::unique_ptr<IoBackend> make_uring_backend(int depth, const os::File& probe, std::string* refusal);
std::unique_ptr<IoBackend> make_thread_backend(int depth);

}  // namespace transload
