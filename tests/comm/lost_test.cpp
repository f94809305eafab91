// Ranks that die, stand still, fail or leave: the others say who and what it was doing, in time, and end.
#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/size.h"
#include "comm/ranks.h"
#include "comm/star.h"

namespace transload::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTimeout{1500};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

CommOptions quick_options(const Way& way) {
  CommOptions options = options_of(way);
  options.timeout = kTimeout;
  return options;
}

void gather_for_ever(Communicator& c) {
  InlineStream stream;
  std::vector<std::byte> in(3 * MiB), out(3 * MiB * static_cast<std::uint64_t>(c.size()));
  for (std::uint64_t step = 1;; ++step) {
    c.publish({step, 1, "gathering weights"});
    c.all_gather({in.data(), in.size()}, {out.data(), out.size()}, stream);
  }
}

void exchange_for_ever(Communicator& c) {
  for (std::uint64_t step = 1;; ++step) {
    c.publish({step, -1, "exchanging"});
    c.barrier();
  }
}

// The others wait for a rank that computes.
void compute_long(Communicator& c) {
  c.publish({7, 3, c.rank() == 1 ? "computing" : "waiting"});
  if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  c.barrier();
}

struct Scene {
  const char* name;
  void (*body)(Communicator&);
  const char* doing;
};
constexpr Scene kScenes[] = {{"in a collective", gather_for_ever, "gathering weights"},
                             {"in an exchange", exchange_for_ever, "exchanging"},
                             {"between collectives", compute_long, "computing"}};

/// Rank `victim` gets `signal` after a while; the others must name it and what it did.
void lose(const Scene& scene, const Way& way, int victim, int signal) {
  INFO(way.name << ", " << scene.name << ", rank " << victim << ", signal " << signal);
  Clock::time_point lost;
  const auto watch = [&](const std::vector<int>& pids) {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const int pid = pids[static_cast<std::size_t>(victim)];
    ::kill(pid, signal);
    lost = Clock::now();
    for (const int other : pids)
      if (other != pid) {
        siginfo_t info;
        while (seconds_since(lost) < 10 &&
               ::waitid(P_PID, static_cast<id_t>(other), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    CHECK(seconds_since(lost) < (signal == SIGKILL ? 1.0 : 2.0) * std::chrono::duration<double>(kTimeout).count());
    ::kill(pid, SIGKILL);
  };
  const std::vector<Ending> endings = run_processes(3, quick_options(way), scene.body, 12, watch);
  for (int rank = 0; rank < 3; ++rank) {
    const Ending& ending = endings[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << ending.text);
    CHECK(ending.killed == (rank == victim));
    if (rank == victim) continue;
    CHECK(ending.text.find("Rank " + std::to_string(victim) + " is lost") == 0);
    if (std::string(scene.doing) != "computing" || victim == 1)
      CHECK(ending.text.find(scene.doing) != std::string::npos);
    CHECK(ending.text.find("at step ") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a rank that is killed is named by the others at once") {
  for (const Way& way : ways())
    for (const Scene& scene : kScenes)
      for (const int victim : {0, 1})
        if (victim == 1 || scene.body != compute_long) lose(scene, way, victim, SIGKILL);
  for (int tries = 0; tries < 100 && !leftovers().empty(); ++tries)  // other tests have segments for a moment
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(leftovers().empty());
}

TEST_CASE("a rank that stands still is named within the timeout") {
  for (const Way& way : ways()) {
    lose(kScenes[0], way, 1, SIGSTOP);
    lose(kScenes[1], way, 0, SIGSTOP);
  }
}

TEST_CASE("a rank that computes for longer than the timeout is waited for") {
  for (const Way& way : ways()) {
    CommOptions options = quick_options(way);
    options.timeout = std::chrono::milliseconds(300);
    const std::vector<Ending> endings = run_processes(
        2, options,
        [](Communicator& c) {
          if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          c.barrier();
        },
        20);
    for (const Ending& ending : endings) CHECK(ending.text == "");
  }
}

TEST_CASE("a rank that never comes to an operation is given up after ten times the timeout") {
  for (const Way& way : ways()) {
    INFO(way.name);
    CommOptions options = quick_options(way);
    options.timeout = std::chrono::milliseconds(200);
    const std::vector<std::string> errors = run_threads(2, options, [](Communicator& c) {
      if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3500));
      c.barrier();
    });
    INFO(errors[0] << " | " << errors[1]);
    CHECK(errors[0].find("Rank 1 is lost: ") == 0);
    CHECK(errors[1].find("Rank 1 is lost: ") == 0);
  }
}

TEST_CASE("a rank's own error reaches the others with its words") {
  for (const Way& way : ways()) {
    const std::vector<Ending> endings = run_processes(
        3, quick_options(way),
        [](Communicator& c) {
          c.publish({4, 2, "reading tokens"});
          if (c.rank() == 2) {
            c.fail("tokens.bin is too short.");
            throw InputError("tokens.bin is too short.");
          }
          c.barrier();
        },
        12);
    CHECK(endings[2].text == "tokens.bin is too short.");
    for (const int rank : {0, 1}) {
      const std::string& text = endings[static_cast<std::size_t>(rank)].text;
      CHECK(text == "Rank 2 failed: tokens.bin is too short. It was at step 4, chunk 2: reading tokens.");
    }
  }
}

TEST_CASE("a rank that leaves early is not waited for for ever") {
  for (const Way& way : ways()) {
    INFO(way.name);
    const std::vector<Ending> endings = run_processes(
        2, quick_options(way),
        [](Communicator& c) {
          c.barrier();
          if (c.rank() == 0) c.barrier();
        },
        12);
    CHECK(endings[1].text == "");
    INFO(endings[0].text);
    CHECK(endings[0].text.find("Rank 1") == 0);
  }
}

TEST_CASE("ranks that do not come are named") {
  const Clock::time_point begin = Clock::now();
  CommOptions options;
  options.timeout = std::chrono::milliseconds(500);
  CHECK_THROWS_WITH(make_communicator(launch_of(0, 3, free_port()), options),
                    Catch::Contains("ranks 1, 2 did not come to rank 0"));
  CHECK_THROWS_WITH(make_communicator(launch_of(2, 3, free_port()), options),
                    Catch::Contains("Rank 2 of 3 did not reach rank 0 at 127.0.0.1:"));
  CHECK(seconds_since(begin) < 3);
}

TEST_CASE("a port that is taken, and two processes of one rank") {
  const Socket taken = listen_on(0, true);
  CommOptions options;
  options.timeout = std::chrono::milliseconds(1000);
  CHECK_THROWS_WITH(make_communicator(launch_of(0, 2, port_of(taken)), options),
                    Catch::Contains("cannot listen on port " + std::to_string(port_of(taken))));
  const int port = free_port();
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      try {
        make_communicator(launch_of(i == 0 ? 0 : 1, 3, port), options);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(i)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  INFO(errors[0] << " | " << errors[1] << " | " << errors[2]);
  CHECK(errors[0].find("rank 2 did not come") != std::string::npos);
  CHECK((errors[1] + errors[2]).find("two processes have the same rank") != std::string::npos);
}

}  // namespace transload::testing
