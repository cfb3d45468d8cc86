// Which rank this process is, as its launcher says it: torchrun, mpirun (OpenMPI, or any MPI that
// speaks PMI) or srun. A process that was launched alone is one rank of one.
//
// Pure      a function of a lookup of environment variables.
// Failure   kInvalidArgument that names the variables: half-set, not a number, out of range, or two
//           launchers that contradict each other.
// Slurm     only what srun sets for a step of several tasks counts. An sbatch script and what runs
//           in it alone carry the allocation's SLURM_NTASKS too, and do not wait.
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
  /// MPI can start here: mpirun or srun began the process.
  bool under_mpi = false;
  /// Where rank 0 listens; empty and 0 where the launcher names no place (mpirun).
  std::string master_address;
  int master_port = 0;
  /// torchrun's agent serves the store: no rank does, and keys stand behind the prefix.
  bool agent_store = false;
  std::string store_prefix;

  /// Null from the lookup: not set.
  using Lookup = std::function<const char*(const char* name)>;
  [[nodiscard]] static Result<Environment> detect(const Lookup& lookup);
  /// Of this process.
  [[nodiscard]] static Result<Environment> detect();
};

/// First host of Slurm's compressed list: "gpu[07-09,12],login1" -> "gpu07".
[[nodiscard]] std::string first_host(const std::string& list);

}  // namespace neap::parallel
