// The rank of this process, read from the launcher's environment variables: torchrun, mpirun
// (OpenMPI, or any MPI that uses PMI) or srun. A process that was started alone is one rank of one.
//
// Threads   pure function of a lookup of environment variables.
// Failure   kInvalidArgument that names the variables: half-set, not a number, out of range, or two
//           launchers that contradict each other.
// Slurm     only the variables of an srun step with several tasks count. An sbatch script also
//           carries the allocation's SLURM_NTASKS, but runs as one process.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace neap::parallel {

enum class Launcher { kNone, kTorchrun, kOpenMpi, kPmi, kSlurm };
[[nodiscard]] const char* to_string(Launcher launcher);

struct Environment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
  int local_size = 1;
  /// mpirun or srun started the process, so MPI can be initialised.
  bool under_mpi = false;
  /// The address where rank 0 listens. Empty, with port 0, if the launcher gives none (mpirun).
  std::string master_address;
  int master_port = 0;
  /// torchrun's agent serves the store, so no rank does. Keys have its prefix.
  bool agent_store = false;
  std::string store_prefix;

  /// Returns null for a variable that is not set.
  using Lookup = std::function<const char*(const char* name)>;
  [[nodiscard]] static Result<Environment> detect(const Lookup& lookup);
  /// Reads the environment of this process.
  [[nodiscard]] static Result<Environment> detect();
};

/// The first host of Slurm's compressed list: "gpu[07-09,12],login1" -> "gpu07".
[[nodiscard]] std::string first_host(const std::string& list);

}  // namespace neap::parallel
