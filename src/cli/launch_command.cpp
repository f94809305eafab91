// transload launch: local ranks without mpirun or torchrun. Each is this program with torchrun's variables; the
// launcher waits for all, passes signals on, and ends the others when one is gone and they do not end by themselves.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"

namespace transload::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostLocalRanks = 1024;
constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kGrace =
    std::chrono::seconds(15);  // beyond the ranks' own timeout, for a rank to end once one has failed

volatile std::sig_atomic_t signal_to_pass = 0;
extern "C" void on_signal(int number) { signal_to_pass = number; }

int take_signal() {
  const int number = signal_to_pass;
  signal_to_pass = 0;
  return number;
}

/// A port that nothing listens on now.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int port = bound ? ntohs(address.sin_port) : 0;
  if (fd >= 0) ::close(fd);
  if (port == 0) throw Error(fmt::format("No port is free for the ranks to meet at: {}.", std::strerror(errno)));
  return port;
}

void set_variable(const char* name, int value) { ::setenv(name, std::to_string(value).c_str(), 1); }

[[noreturn]] void become_rank(const LaunchArguments& arguments, int rank, int port) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a launcher that is killed leaves nobody behind
  ::setpgid(0, 0);                     // a terminal's interrupt comes once, passed on by the launcher
  set_variable("RANK", rank);
  set_variable("LOCAL_RANK", rank);
  set_variable("WORLD_SIZE", arguments.ranks);
  set_variable("LOCAL_WORLD_SIZE", arguments.ranks);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_variable("MASTER_PORT", port);
  std::string name = "transload";
  std::vector<char*> words = {name.data()};
  std::vector<std::string> copies = arguments.words;
  for (std::string& word : copies) words.push_back(word.data());
  words.push_back(nullptr);
  ::execv("/proc/self/exe", words.data());
  fmt::print(stderr, "transload: rank {} could not be started: {}\n", rank, std::strerror(errno));
  std::_Exit(kFailed);
}

class Children {
 public:
  explicit Children(const LaunchArguments& arguments) {
    const int port = free_port();
    for (int rank = 0; rank < arguments.ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) become_rank(arguments, rank, port);
      if (pid < 0) {
        const int error = errno;
        send(SIGKILL);
        throw Error(fmt::format("Rank {} could not be started: {}.", rank, std::strerror(error)));
      }
      pids_.push_back(pid);
    }
  }

  /// The first status that is not 0, or 0. A refusal or an interruption is the cause where other ranks then failed.
  int wait() {
    while (left() > 0) {
      reap();
      if (const int number = take_signal(); number != 0) send(number);
      if (failed_ && Clock::now() > failed_at_ + kGrace) send(SIGKILL);
      if (left() > 0) std::this_thread::sleep_for(kLook);
    }
    return status_;
  }

 private:
  std::size_t left() const {
    return pids_.size() - static_cast<std::size_t>(std::count(pids_.begin(), pids_.end(), 0));
  }
  void send(int number) const {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, number);
  }
  void reap() {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      int how = 0;
      if (pids_[rank] == 0 || ::waitpid(pids_[rank], &how, WNOHANG) != pids_[rank]) continue;
      pids_[rank] = 0;
      const int status = WIFEXITED(how) ? WEXITSTATUS(how) : kFailed;
      if (WIFSIGNALED(how)) fmt::print(stderr, "transload: rank {} was ended by signal {}.\n", rank, WTERMSIG(how));
      if (status == 0) continue;
      if (!failed_) failed_at_ = Clock::now();
      failed_ = true;
      if (status_ == 0 || status_ == kFailed) status_ = status;
    }
  }

  std::vector<pid_t> pids_;  // 0: ended
  int status_ = 0;
  bool failed_ = false;
  Clock::time_point failed_at_{};
};

}  // namespace

int run_launch(const LaunchArguments& arguments) {
  if (arguments.ranks < 1 || arguments.ranks > kMostLocalRanks)
    throw InputError(fmt::format("-n must be from 1 to {}, not {}.", kMostLocalRanks, arguments.ranks));
  if (arguments.words.empty())
    throw InputError("What the ranks run is missing: transload launch -n 4 -- train --model …");
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, on_signal);
  return Children(arguments).wait();
}

}  // namespace transload::cli
