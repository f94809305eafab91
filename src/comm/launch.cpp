#include "comm/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace transload {
namespace {

using Text = std::optional<std::string>;

/// A variable and its value, read as a whole number in [least, most].
int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw InputError(fmt::format("{}={} is not a whole number from {} to {}.", name, text, least, most));
  return value;
}

constexpr int kMost = 1'000'000;

/// Rank and size of two variables that belong together.
void read_pair(const Environment& environment, const char* rank_name, const char* size_name, int* rank, int* size) {
  const Text rank_text = environment(rank_name), size_text = environment(size_name);
  if (!rank_text || !size_text)
    throw InputError(fmt::format("{} is set and {} is not: a launcher sets both.", rank_text ? rank_name : size_name,
                                 rank_text ? size_name : rank_name));
  *size = number(size_name, *size_text, 1, kMost);
  *rank = number(rank_name, *rank_text, 0, kMost);
  if (*rank >= *size) throw InputError(fmt::format("{}={} is not below {}={}.", rank_name, *rank, size_name, *size));
}

void read_local(const Environment& environment, const char* rank_name, const char* size_name, Launch* launch) {
  if (const Text text = environment(rank_name)) launch->local_rank = number(rank_name, *text, 0, kMost);
  if (const Text text = environment(size_name)) launch->local_size = number(size_name, *text, 1, kMost);
  const int size = launch->local_size.value_or(launch->place.size);
  if (size > launch->place.size)
    throw InputError(fmt::format("{}={} is more than all {} ranks.", size_name, size, launch->place.size));
  if (launch->local_rank.value_or(0) >= size)
    throw InputError(fmt::format("{}={} is not below {}, the ranks of {}.", rank_name, *launch->local_rank, size,
                                 launch->local_size ? "this node" : "the job"));
}

int port_of(const Environment& environment, int otherwise) {
  const Text port = environment("MASTER_PORT");
  return port ? number("MASTER_PORT", *port, 1, 65535) : otherwise;
}

// torchrun's agent may hold MASTER_PORT for a store of its own; then rank 0 listens on the next one.
Launch torchrun(const Environment& environment) {
  Launch launch;
  launch.launcher = Launcher::torchrun;
  read_pair(environment, "RANK", "WORLD_SIZE", &launch.place.rank, &launch.place.size);
  read_local(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", &launch);
  if (launch.place.size == 1) return launch;
  const Text host = environment("MASTER_ADDR");
  if (!host || host->empty() || !environment("MASTER_PORT"))
    throw InputError(fmt::format("WORLD_SIZE={} needs MASTER_ADDR and MASTER_PORT: where rank 0 is to be reached.",
                                 launch.place.size));
  launch.host = *host;
  launch.port = port_of(environment, 0);
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True")
    launch.port = launch.port == 65535 ? 65534 : launch.port + 1;
  launch.job =
      environment("TORCHELASTIC_RUN_ID").value_or("") + "/" + environment("TORCHELASTIC_RESTART_COUNT").value_or("");
  return launch;
}

// A port of the job's own, so that two jobs on a node do not meet.
int slurm_port(const std::string& job) {
  unsigned hash = 0;
  for (const char c : job) hash = hash * 31 + static_cast<unsigned char>(c);
  return static_cast<int>(20000 + hash % 10000);
}

Launch slurm(const Environment& environment) {
  Launch launch;
  launch.launcher = Launcher::slurm;
  read_pair(environment, "SLURM_PROCID", "SLURM_NTASKS", &launch.place.rank, &launch.place.size);
  read_local(environment, "SLURM_LOCALID", "", &launch);
  if (launch.place.size == 1) return launch;
  launch.job = environment("SLURM_JOB_ID").value_or("") + "." + environment("SLURM_STEP_ID").value_or("");
  Text nodes = environment("SLURM_STEP_NODELIST");
  if (!nodes) nodes = environment("SLURM_JOB_NODELIST");
  if (!nodes) nodes = environment("SLURM_NODELIST");
  if (environment("MASTER_ADDR")) nodes = environment("MASTER_ADDR");
  if (!nodes || nodes->empty())
    throw InputError(fmt::format("SLURM_NTASKS={} without SLURM_STEP_NODELIST: set MASTER_ADDR to rank 0's host.",
                                 launch.place.size));
  launch.host = first_host(*nodes);
  launch.port = port_of(environment, slurm_port(launch.job));
  return launch;
}

struct MpiNames {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr MpiNames kMpi[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

std::optional<Launch> mpi(const Environment& environment) {
  for (const MpiNames& names : kMpi) {
    if (!environment(names.size)) continue;
    Launch launch;
    launch.launcher = Launcher::mpi;
    read_pair(environment, names.rank, names.size, &launch.place.rank, &launch.place.size);
    read_local(environment, names.local_rank, names.local_size, &launch);
    return launch;
  }
  return std::nullopt;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> Text {
    const char* const value = std::getenv(name);
    return value == nullptr ? Text() : Text(value);
  };
}

// The nearest launcher first: mpirun may run under Slurm, and torchrun under srun. A batch script's own shell has some
// of Slurm's variables and is one process; srun sets both.
Launch detect_launch(const Environment& environment) {
  if (environment("RANK") || environment("WORLD_SIZE")) return torchrun(environment);
  if (const std::optional<Launch> launch = mpi(environment)) return *launch;
  if (environment("SLURM_PROCID") && environment("SLURM_NTASKS")) return slurm(environment);
  return {};
}

std::string first_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('['), comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const std::size_t end = node_list.find_first_of(",-]", bracket + 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

}  // namespace transload
