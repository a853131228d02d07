// How this process was launched among others that train with it: the variables of torchrun, Open MPI and SLURM.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace wick {

struct RankPlace {
  int rank = 0, count = 1;
  int local = 0;                              // its number on its machine, which chooses the device
  std::string address;                        // of rank 0's machine, a name or a number; unused with id_file
  int port = 0;                               // where rank 0 listens; 0, with id_file alone: any free one
  std::string id_file;                        // the file by which rank 0 tells all other ranks where it listens
  std::chrono::seconds timeout{300};          // for all ranks to come
  std::chrono::milliseconds silence{20'000};  // after which a connected rank that is not heard of counts as lost
};

// The place that the launcher gave to this process. None if there was no launcher or the process is its only one.
//
// Rank, count and local rank are, of the first launcher that has set its own: RANK, WORLD_SIZE, LOCAL_RANK (torchrun);
// OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK (Open MPI); SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID (SLURM, in a step of
// several tasks: a batch script without srun is one process, whatever its tasks).
//
// Rank 0 is found at MASTER_ADDR, or through WICK_ID_FILE, a file on a file system that all share. One machine needs
// neither. The port is WICK_ID_PORT, else MASTER_PORT + 1 (MASTER_PORT is that of torchrun's own store), else 29501,
// and with WICK_ID_FILE any free one. WICK_RANK_TIMEOUT is in seconds. An empty variable counts as unset.
//
// Throws UsageError, which names the variable, where one is missing or makes no sense.
std::optional<RankPlace> rank_from_environment();

// The same for WICK_ID_PORT and WICK_RANK_TIMEOUT, whether or not there is a launcher.
void check_rank_variables();

}  // namespace wick
