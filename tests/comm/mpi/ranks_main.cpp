// One rank of a job that mpirun started: joins the contract, or waits to be lost.
//   test_comm_mpi contract | wire | lost
#include <csignal>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "comm/contract.h"
#include "comm/launch.h"

namespace transload::testing {
namespace {

void check_bits(Communicator& c) {
  const std::uint64_t wanted = reference_hash_of_sums(c.rank(), c.size());
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    if (hash_of_sums(c, seed) != wanted) throw std::runtime_error("sums have other bits");
}

void join(Communicator& c, bool wire) {
  if ((std::strcmp(c.transport(), "MPI") == 0) != wire) throw std::runtime_error(c.transport());
  for (const Clause& clause : contract()) clause.run(c);
  check_bits(c);
}

// The last rank stops in the middle; the others must say so.
void lose(Communicator& c) {
  InlineStream stream;
  std::vector<std::byte> in(2'000'000), out(in.size() * static_cast<std::size_t>(c.size()));
  for (std::uint64_t step = 1;; ++step) {
    c.publish({step, 5, "gathering weights"});
    if (step == 30 && c.rank() == c.size() - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::raise(SIGSTOP);
    }
    c.all_gather({in.data(), in.size()}, {out.data(), out.size()}, stream);
  }
}

int run(const std::string& what) {
  CommOptions options;
  options.largest_bytes = 64u << 20;
  options.timeout = std::chrono::seconds(what == "contract" || what == "wire" ? 20 : 2);
  options.shared_memory = what != "wire" && what != "lost";
  const Launch launch = detect_launch();
  if (launch.launcher != Launcher::mpi) throw std::runtime_error("mpirun did not start this");
  const auto communicator = make_communicator(launch, options);
  if (what == "lost")
    lose(*communicator);
  else
    join(*communicator, what == "wire");
  if (communicator->rank() == 0)
    std::printf("%s: %d ranks are right\n", communicator->transport(), communicator->size());
  return 0;
}

}  // namespace
}  // namespace transload::testing

int main(int argc, char** argv) {
  try {
    return transload::testing::run(argc > 1 ? argv[1] : "contract");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::fflush(stderr);
    std::_Exit(1);  // as a program must after a loss
  }
}
