#include "offload/io_backend.h"

#ifdef TRANSLOAD_HAVE_URING

#include <fmt/format.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace transload {
namespace {

/// From the cheapest for the processor to what every kernel with io_uring has.
constexpr std::array<unsigned, 3> kSetups = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                             IORING_SETUP_COOP_TASKRUN, 0};

class UringBackend final : public IoBackend {
 public:
  UringBackend() = default;
  ~UringBackend() override {
    if (event_fd_ >= 0) ::close(event_fd_);
    if (ring_up_) io_uring_queue_exit(&ring_);
  }

  /// Empty, or why not.
  std::string set_up(int depth, const os::File& probe) {
    std::int64_t result = -EINVAL;
    for (std::size_t i = 0; i < kSetups.size() && result == -EINVAL; ++i) result = try_setup(kSetups[i], depth);
    if (result < 0) return cause("io_uring_setup", result);
    event_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (event_fd_ < 0) return cause("eventfd", -errno);
    answered_.reserve(static_cast<std::size_t>(depth));
    return probe_read(probe);
  }

  void start(IoRequest* request) override {
    const auto kind = request->write ? os::OpKind::write : os::OpKind::read;
    const auto said = os::intercept({kind, request->file->path().c_str(), request->offset, request->bytes});
    if (said && *said <= 0) {
      request->result = *said;
      answered_.push_back(request);
      return;
    }
    request->most = said ? *said : INT64_MAX;
    io_uring_sqe* entry = next_entry();
    const auto prepare = request->write ? io_uring_prep_writev : io_uring_prep_readv;
    prepare(entry, request->file->fd(), request->pieces.data(), static_cast<unsigned>(request->pieces.size()),
            request->offset);
    io_uring_sqe_set_data(entry, request);
  }

  std::size_t wait(bool block, std::span<IoRequest*> finished) override {
    if (!event_armed_) {
      io_uring_sqe* entry = next_entry();
      io_uring_prep_read(entry, event_fd_, &event_value_, sizeof event_value_, 0);
      io_uring_sqe_set_data(entry, nullptr);
      event_armed_ = true;
    }
    enter(block && answered_.empty() && io_uring_cq_ready(&ring_) == 0);
    std::size_t n = 0;
    while (n < finished.size() && !answered_.empty()) {
      finished[n++] = answered_.back();
      answered_.pop_back();
    }
    io_uring_cqe* entry = nullptr;
    while (n < finished.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
      auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(entry));
      if (request == nullptr) {
        event_armed_ = false;
      } else {
        request->result = std::min<std::int64_t>(entry->res, request->most);
        finished[n++] = request;
      }
      io_uring_cqe_seen(&ring_, entry);
    }
    return n;
  }

  void wake() override {
    const std::uint64_t one = 1;
    // An eventfd refuses only when its counter is full, and then the queue has been woken.
    [[maybe_unused]] const auto written = ::write(event_fd_, &one, sizeof one);
  }

 private:
  std::int64_t try_setup(unsigned flags, int depth) {
    if (const auto said = os::intercept({os::OpKind::io_uring_setup, "io_uring", 0, 0, static_cast<int>(flags)})) {
      if (*said < 0) return *said;
    }
    io_uring_params params{};
    params.flags = flags;
    const int result = io_uring_queue_init_params(static_cast<unsigned>(depth) + 1, &ring_, &params);
    ring_up_ = result == 0;
    deferred_ = (flags & IORING_SETUP_DEFER_TASKRUN) != 0;
    return result;
  }

  static std::string cause(const char* call, std::int64_t result) {
    const int error = static_cast<int>(-result);
    std::string text = fmt::format("{}: {}", call, std::strerror(error));
    if (error == EPERM) text += " (forbidden here, as containers and the sysctl kernel.io_uring_disabled do)";
    if (error == ENOSYS) text += " (this kernel has none)";
    if (error == ENOMEM) text += " (the limit of locked memory, ulimit -l, is too small)";
    return text;
  }

  /// What sets up may still not work: the beginning of a slot file is read as blocks will be.
  std::string probe_read(const os::File& probe) {
    alignas(4096) std::array<std::byte, 4096> memory;
    std::array<iovec, 1> pieces = {iovec{memory.data(), memory.size()}};
    IoRequest request;
    request.file = &probe;
    request.bytes = 4096;
    request.pieces = pieces;
    start(&request);
    IoRequest* finished = nullptr;
    while (wait(true, std::span(&finished, 1)) == 0) {
    }
    if (request.result == 4096) return {};
    return request.result < 0
               ? cause("a first read through io_uring", request.result)
               : fmt::format("a first read through io_uring came back with {} of 4096 bytes", request.result);
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    TRANSLOAD_CHECK(entry != nullptr, "more requests than the ring was made for");
    return entry;
  }

  /// Hands over what was started and lets the kernel deliver what has ended.
  void enter(bool block) {
    os::Retry retry;
    for (;;) {
      const int result = block ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
      if (result >= 0) break;
      if (result == -EINTR && block && io_uring_sq_ready(&ring_) == 0) break;  // like wake()
      // Requests may be half with the kernel: neither can they be called failed, nor their memory given back.
      TRANSLOAD_CHECK(retry.again(result == -EBUSY ? -EAGAIN : result), "io_uring_enter: {}", std::strerror(-result));
    }
    if (!block && deferred_) io_uring_get_events(&ring_);
  }

  io_uring ring_{};
  bool ring_up_ = false, deferred_ = false, event_armed_ = false;
  int event_fd_ = -1;
  std::uint64_t event_value_ = 0;
  std::vector<IoRequest*> answered_;  // by the interceptor, without the kernel
};

}  // namespace

std::unique_ptr<IoBackend> make_uring_backend(int depth, const os::File& probe, std::string* refusal) {
  auto backend = std::make_unique<UringBackend>();
  *refusal = backend->set_up(depth, probe);
  if (!refusal->empty()) return nullptr;
  return backend;
}

}  // namespace transload

#else

namespace transload {
std::unique_ptr<IoBackend> make_uring_backend(int, const os::File&, std::string* refusal) {
  *refusal = "this build has no liburing";
  return nullptr;
}
}  // namespace transload

#endif
