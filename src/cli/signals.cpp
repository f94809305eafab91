#include "cli/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "cli/commands.h"

namespace transload::cli {
namespace {

std::atomic<int> interrupts{0};
std::atomic<bool> silent{false};
static_assert(std::atomic<int>::is_always_lock_free);

void say(std::string_view text) {
  if (silent) return;
  // Nothing can be done about a failure here, and only write() is safe in a signal handler.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// The terminal has gone: stop in order. It may be said more than once, so it never means to leave at once.
extern "C" void on_hangup(int) {
  int none = 0;
  interrupts.compare_exchange_strong(none, 1);
}

extern "C" void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) {
    say("\ntransload: left at once; the store is as last committed.\n");
    ::_exit(kInterrupted);
  }
  say("\ntransload: finishing this step, then committing. Interrupt again to leave at once.\n");
}

}  // namespace

const std::atomic<int>& watch_interrupts(bool says) {
  silent = !says;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) {  // nohup
    hangup = action;
    hangup.sa_handler = on_hangup;
    ::sigaction(SIGHUP, &hangup, nullptr);
  }
  return interrupts;
}

void prepare_process() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      const int opened = ::open("/dev/null", O_RDWR);  // takes the lowest number that is free: this one
      if (opened >= 0 && opened != fd) ::close(opened);
    }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace transload::cli
