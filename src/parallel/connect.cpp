#include "base/format.h"
#include "base/status.h"
#include "parallel/communicator.h"
#include "parallel/mpi.h"
#include "parallel/nccl.h"

namespace neap::parallel {

std::unique_ptr<Communicator> connect(const Environment& environment,
                                      const ConnectOptions& options) {
  if (environment.size == 1) return make_single();
  if (options.device.is_cuda()) return connect_nccl(environment, options);
  if (!environment.under_mpi) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} started {} ranks, and CPU ranks use MPI: start the same "
                       "command with mpirun -n {}",
                       to_string(environment.launcher), environment.size, environment.size));
  }
  return connect_mpi(environment, options.timeout_seconds);
}

}  // namespace neap::parallel
