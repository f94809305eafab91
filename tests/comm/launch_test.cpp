// Launchers' variables: what they mean, and contradictions.
#include "comm/launch.h"

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"
#include "comm/ranks.h"

namespace transload::testing {
namespace {

using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables) {
  return detect_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},        {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "6"},  {"SLURM_LOCALID", "1"},
                       {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gpu[07-09,12],x1"}};

}  // namespace

TEST_CASE("no launcher: one process") {
  CHECK(detect({}).launcher == Launcher::none);
  CHECK(detect({}).place.size == 1);
  CHECK(detect({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}).launcher == Launcher::none);
  CHECK(make_communicator(detect({}), {})->transport() == std::string("one process"));
}

TEST_CASE("torchrun's variables") {
  const Launch launch = detect(kTorchrun);
  CHECK(launch.launcher == Launcher::torchrun);
  CHECK(launch.place.rank == 5);
  CHECK(launch.place.size == 8);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_size == 4);
  CHECK(launch.host == "h");
  CHECK(launch.port == 29500);
  CHECK(detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).port == 29501);
  CHECK(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).place.size == 1);
}

TEST_CASE("Slurm's variables") {
  const Launch launch = detect(kSlurm);
  CHECK(launch.launcher == Launcher::slurm);
  CHECK(launch.place.rank == 3);
  CHECK(launch.place.size == 6);
  CHECK(launch.local_rank == 1);
  CHECK(launch.host == "gpu07");
  CHECK(launch.port >= 20000);
  CHECK(launch.port == detect(with(kSlurm, {{"SLURM_PROCID", "0"}})).port);
  CHECK(detect(with(kSlurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "99"}})).host == "other");
  CHECK(detect(with(kSlurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "99"}})).port == 99);
  CHECK(detect({{"SLURM_NTASKS", "4"}}).launcher == Launcher::none);  // a shell of salloc
  CHECK(detect({{"SLURM_PROCID", "0"}}).launcher == Launcher::none);  // a batch script
}

TEST_CASE("the first host of a list of nodes") {
  CHECK(first_host("a") == "a");
  CHECK(first_host("a,b") == "a");
  CHECK(first_host("n[3-5]") == "n3");
  CHECK(first_host("n[03,07]") == "n03");
  CHECK(first_host("n[4]") == "n4");
  CHECK(first_host("login,n[1-2]") == "login");
}

TEST_CASE("MPI launchers' variables") {
  const Launch open = detect({{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  CHECK(open.launcher == Launcher::mpi);
  CHECK(open.place.rank == 2);
  CHECK(open.local_rank == 0);
  CHECK(open.local_size == 1);
  CHECK(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).launcher == Launcher::mpi);
  CHECK(detect(with(kTorchrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})).launcher == Launcher::torchrun);
  // One rank of mpirun's is one process: MPI is not started for it.
  CHECK(make_communicator(detect({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), {})->size() == 1);
}

TEST_CASE("variables that contradict each other are refused in one line") {
  const auto refused = [](const Variables& variables, const std::string& words) {
    INFO(words);
    try {
      detect(variables);
      FAIL("not refused");
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), Catch::Contains(words));
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  };
  refused({{"RANK", "0"}}, "RANK is set and WORLD_SIZE is not");
  refused({{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set and RANK is not");
  refused(with(kTorchrun, {{"RANK", "8"}}), "RANK=8 is not below WORLD_SIZE=8");
  refused(with(kTorchrun, {{"RANK", "-1"}}), "RANK=-1 is not a whole number from 0");
  refused(with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0 is not a whole number from 1");
  refused(with(kTorchrun, {{"WORLD_SIZE", "8x"}}), "WORLD_SIZE=8x is not a whole number");
  refused(with(kTorchrun, {{"MASTER_PORT", "http"}}), "MASTER_PORT=http is not a whole number from 1 to 65535");
  refused(with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT=70000");
  refused(with(kTorchrun, {{"MASTER_ADDR", ""}}), "needs MASTER_ADDR and MASTER_PORT");
  refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}, "needs MASTER_ADDR and MASTER_PORT");
  refused(with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 is not below 4, the ranks of this node");
  refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE=9 is more than all 8 ranks");
  refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not");
  refused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, "SLURM_NTASKS=2 without SLURM_STEP_NODELIST");
}

TEST_CASE("each rank knows its place on its node") {
  const std::vector<std::string> errors = run_threads(3, options_of(ways()[0]), [](Communicator& c) {
    const Place place = c.place();
    if (place.local_rank != place.rank || place.local_size != 3) throw std::runtime_error("another place");
  });
  CHECK(errors == std::vector<std::string>(3));
}

}  // namespace transload::testing
