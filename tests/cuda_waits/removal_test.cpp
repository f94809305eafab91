// Every wait of the CUDA back end is needed: without it something comes out wrong over the stand-in. This process has
// no threads; each removal runs in a child of it, which may also crash or never end.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>

#include "cuda_waits/workloads.h"
#include "sites.h"
#include "train/temp_folder.h"

using namespace cuda_waits;

namespace {

constexpr unsigned kLimitSeconds = 500;  // of the whole run; the others get five times what it took
constexpr int kNothingFound = 0, kNotReached = 1, kFirstWorkload = 2;

/// The number of the first workload that came out wrong.
int run_workloads(int site, const std::string& folder) {
  leave_out(site);
  const std::vector<Workload> all = workloads(folder, site < 0);
  for (std::size_t w = 0; w < all.size(); ++w) {
    bool right = false;
    try {
      right = all[w].comes_out_right();
    } catch (...) {  // an error, or a requirement that failed
    }
    if (!right) return kFirstWorkload + static_cast<int>(w);
  }
  return site < 0 || was_reached(site) ? kNothingFound : kNotReached;
}

int status_of_child(int site, const std::string& folder, unsigned limit_seconds) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, 1);
    ::dup2(nowhere, 2);
    ::mallopt(M_PERTURB, 0xCB);  // what was freed is not what it was
    ::alarm(limit_seconds);
    ::_exit(run_workloads(site, folder));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

std::string describe(int status, const std::string& folder) {
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? "it never ends" : fmt::format("crash: {}", ::strsignal(WTERMSIG(status)));
  const int code = WEXITSTATUS(status);
  if (code == kNotReached) return "nothing comes to it";
  if (code == kNothingFound) return "nothing changes";
  return "wrong: " + workloads(folder, false).at(static_cast<std::size_t>(code - kFirstWorkload)).name;
}

/// Why a wait is not left out here; nullptr: it is.
const char* why_not(const Site& site) {
  const auto is = [&](const char* text) { return std::strcmp(site.text, text) == 0; };
  if (is("ctx.stream.wait(pin_.ready);"))
    return "kept logits leave the device only with vocabularies of several panels";
  if (is("host.wait(pin.ready);"))
    return "it paces what comes down for a commit; without it more moves (tests/train/follows_plan_test.cpp)";
  return nullptr;
}

bool found(int status) { return WIFSIGNALED(status) || WEXITSTATUS(status) >= kFirstWorkload; }

}  // namespace

TEST_CASE("every wait of the back end is needed") {
  const TempFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const int whole = status_of_child(-1, folder.path(), kLimitSeconds);
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  INFO("with all waits: " << describe(whole, folder.path()));
  REQUIRE((WIFEXITED(whole) && WEXITSTATUS(whole) == kNothingFound));
  int number = 0;
  for (const Site& site : kSites) {
    const int at = number++;
    if (const char* const reason = why_not(site)) {
      fmt::print("{}:{} {}\n    skipped: {}\n", site.file, site.line, site.text, reason);
      continue;
    }
    const int status = status_of_child(at, folder.path(), 10 + 5 * static_cast<unsigned>(took.count()));
    const std::string what = describe(status, folder.path());
    fmt::print("{}:{} {}\n    without it: {}\n", site.file, site.line, site.text, what);
    std::fflush(stdout);
    INFO(site.file << ":" << site.line << " is left out, and " << what);
    CHECK(found(status));
  }
}
