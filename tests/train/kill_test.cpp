// A process killed at any instant leaves the last commit whole; resumed, it ends with the same bits.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;

namespace {

constexpr const char* kRunVariable = "TRANSLOAD_KILL_TEST_RUN";
constexpr const char* kDeviceVariable = "TRANSLOAD_KILL_TEST_DEVICE";

TrainOptions victim_options(const std::string& run, const std::string& device) {
  TrainOptions o = options_of({.budget = 1.3,
                               .device = device == "emulated" ? DeviceKind::emulated : DeviceKind::cpu,
                               .chunk = 16 * KiB,
                               .steps = 12},
                              run);
  o.commit_every = {.steps = 1, .seconds = 0};
  o.resume = Store::exists(run + "/store");
  set_budget(o, 1.3);
  return o;
}

/// Starts this program as a victim: a process of its own, since threads do not survive a fork.
pid_t start_victim(const std::string& run, const std::string& device) {
  ::setenv(kRunVariable, run.c_str(), 1);
  ::setenv(kDeviceVariable, device.c_str(), 1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  const char* arguments[] = {"victim", "A run that is killed", nullptr};
  pid_t pid = 0;
  REQUIRE(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

/// The victim's status after `ms`, or after its end if that comes first.
int kill_after(pid_t pid, double ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(ms);
  int status = 0;
  while (std::chrono::steady_clock::now() < until) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(pid, SIGKILL);
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status;
}

bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
bool was_killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }

}  // namespace

TEST_CASE("A run that is killed", "[.victim]") {
  const char* run = std::getenv(kRunVariable);
  REQUIRE(run != nullptr);
  const TrainOptions o = victim_options(run, std::getenv(kDeviceVariable));
  const Json summary = train(o);
  CHECK(summary["steps_seen"] == o.steps);
  CHECK(summary["peak_resident_bytes"].get<std::uint64_t>() <= o.host_memory + o.device_memory + 200 * MiB);
}

TEST_CASE("Killed at random instants and resumed, a run ends with the same bits") {
  const std::string device = GENERATE("cpu", "emulated");
  TempFolder folder;
  train(victim_options(folder.path("whole"), device));
  const std::string expected = fingerprint_run(folder.path("whole"), {});

  const auto start = std::chrono::steady_clock::now();
  REQUIRE(ended_well(kill_after(start_victim(folder.path("timed"), device), 1e9)));
  const double whole_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  std::mt19937 random(11);
  // Short enough that the run cannot end before some kills, on a machine that has become faster meanwhile, too.
  std::uniform_real_distribution<double> instant(0, whole_ms / 4);
  const std::string run = folder.path("killed");
  int kills = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    // Early kills hit the making of the store; later ones the steps and commits.
    const double wait_ms = attempt < 12 ? instant(random) : 1e9;
    const int status = kill_after(start_victim(run, device), wait_ms);
    if (ended_well(status)) break;
    INFO("attempt " << attempt << " after " << wait_ms << " ms, status " << status);
    REQUIRE(was_killed(status));
    ++kills;
    if (Store::exists(run + "/store")) REQUIRE(verify_run(run, {}).empty());
  }
  CHECK(kills >= 3);
  CHECK(fingerprint_run(run, {}) == expected);
}
