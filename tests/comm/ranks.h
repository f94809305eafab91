// Jobs of ranks that are threads of the test, or processes that it forks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launch.h"

namespace transload::testing {

/// A port that nothing listens on now.
int free_port();
Launch launch_of(int rank, int size, int port);

/// A way that ranks exchange, as the contract's suites go over them.
struct Way {
  const char* name;
  bool shared_memory;
};
/// Those of this build.
std::vector<Way> ways();
CommOptions options_of(const Way& way);

using Body = std::function<void(Communicator&)>;
/// What each rank threw; empty: nothing.
std::vector<std::string> run_threads(int size, const CommOptions& options, const Body& body);

/// What became of a rank's process.
struct Ending {
  bool killed = false;  ///< by SIGKILL
  std::string text;     ///< what it threw; empty: nothing
};
/// `watch` runs in the test's process while the ranks run: it may kill or stop them. Every process has ended after it;
/// one that has not within `limit_s` is killed and says so.
std::vector<Ending> run_processes(int size, const CommOptions& options, const Body& body, double limit_s,
                                  const std::function<void(const std::vector<int>& pids)>& watch = {});

/// Names in /dev/shm that are ours.
std::vector<std::string> leftovers();

}  // namespace transload::testing
