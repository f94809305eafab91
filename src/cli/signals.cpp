#include "cli/signals.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "cli/commands.h"

namespace transload::cli {
namespace {

std::atomic<int> interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);

void say(std::string_view text) {
  // Nothing can be done about a failure here, and only write() is safe in a signal handler.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) {
    say("\ntransload: left at once; the store is as last committed.\n");
    ::_exit(kInterrupted);
  }
  say("\ntransload: finishing this step, then committing. Interrupt again to leave at once.\n");
}

}  // namespace

const std::atomic<int>& watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return interrupts;
}

}  // namespace transload::cli
