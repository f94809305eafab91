#include "comm/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/os.h"
#include "comm/star.h"

namespace transload::testing {
namespace {

/// Where forked ranks leave their last words.
struct Words {
  std::atomic<bool> done;
  char text[1000];
};

class SharedWords {
 public:
  explicit SharedWords(int size)
      : bytes_(sizeof(Words) * static_cast<std::size_t>(size)),
        words_(
            static_cast<Words*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedWords() { ::munmap(words_, bytes_); }
  Words& operator[](int rank) const { return words_[rank]; }

 private:
  std::size_t bytes_;
  Words* words_;
};

[[noreturn]] void be_rank(const Launch& launch, const CommOptions& options, const Body& body, Words& words) {
  try {
    const std::unique_ptr<Communicator> communicator = make_communicator(launch, options);
    body(*communicator);
  } catch (const std::exception& error) {
    std::strncpy(words.text, error.what(), sizeof(words.text) - 1);
  }
  words.done = true;
  ::_exit(0);
}

bool ended(int pid, int* status, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    if (::waitpid(pid, status, WNOHANG) == pid) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

int free_port() { return port_of(listen_on(0, true)); }

Launch launch_of(int rank, int size, int port) {
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.place.rank = rank;
  launch.place.size = size;
  launch.host = "127.0.0.1";
  launch.port = port;
  return launch;
}

std::vector<Way> ways() {
  std::vector<Way> all{{"shared memory", true}};
#ifdef TRANSLOAD_HAVE_GLOO
  all.push_back({"TCP", false});
#endif
  return all;
}

CommOptions options_of(const Way& way) {
  CommOptions options;
  options.largest_bytes = 64u << 20;
  options.timeout = std::chrono::seconds(20);
  options.shared_memory = way.shared_memory;
  return options;
}

std::vector<std::string> run_threads(int size, const CommOptions& options, const Body& body) {
  const int port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::unique_ptr<Communicator> communicator = make_communicator(launch_of(rank, size, port), options);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<Ending> run_processes(int size, const CommOptions& options, const Body& body, double limit_s,
                                  const std::function<void(const std::vector<int>& pids)>& watch) {
  const int port = free_port();
  const SharedWords words(size);
  std::vector<int> pids;
  for (int rank = 0; rank < size; ++rank) {
    const int pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) be_rank(launch_of(rank, size, port), options, body, words[rank]);
    pids.push_back(pid);
  }
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(limit_s));
  if (watch) watch(pids);
  std::vector<Ending> endings;
  for (int rank = 0; rank < size; ++rank) {
    const int pid = pids[static_cast<std::size_t>(rank)];
    int status = 0;
    Ending ending;
    if (!ended(pid, &status, deadline)) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      ending.text = "hung";
    } else {
      ending.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      ending.text = words[rank].text;
      if (!ending.killed && !words[rank].done)
        ending.text = WIFSIGNALED(status) ? "crashed: signal " + std::to_string(WTERMSIG(status))
                                          : "left early: status " + std::to_string(WEXITSTATUS(status));
    }
    endings.push_back(ending);
  }
  return endings;
}

std::vector<std::string> leftovers() {
  std::vector<std::string> names, ours;
  os::list_folder("/dev/shm", &names);
  for (const std::string& name : names)
    if (name.starts_with("transload-")) ours.push_back(name);
  return ours;
}

}  // namespace transload::testing
