// How this process was started: alone, by torchrun or its like, by Slurm's srun, by an MPI launcher. From the
// environment's variables alone; contradictions are refused in one line each.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"

namespace transload {

enum class Launcher : std::uint8_t { none, torchrun, slurm, mpi };

struct Launch {
  Launcher launcher = Launcher::none;
  Place place;                                ///< for mpi what the launcher's variables say, which MPI must confirm
  std::optional<int> local_rank, local_size;  ///< where the launcher says; else found when the ranks have met
  std::string host;                           ///< where rank 0 is (torchrun, slurm)
  int port = 0;
  std::string job;  ///< a name of the job, equal on its ranks, where the launcher gives one
};

using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment process_environment();

/// InputError where variables contradict each other.
Launch detect_launch(const Environment& environment = process_environment());

/// The first host of a Slurm node list: "node[03-05,9],other" → "node03".
std::string first_host(const std::string& node_list);

/// Brings the ranks together. Error or RankLostError where that fails.
std::unique_ptr<Communicator> make_communicator(const Launch& launch, const CommOptions& options);

}  // namespace transload
