// Where the ranks of a GPU job meet before NCCL connects them, and where one that fails, or that works for long, says so.
//
// Two ways: libtorch's TCP store at MASTER_ADDR:MASTER_PORT (torchrun's agent serves it, else rank 0
// does), or MPI where mpirun started the job and no address is set.
// Threads   share() once; the rest from any.   Failure   Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/environment.h"

namespace neap::parallel {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Rank 0's bytes, on every rank; as many everywhere. Every rank has come when it returns.
  virtual void share(std::vector<char>& bytes) = 0;
  /// Leaves word for the others that this rank fails. Never throws.
  virtual void report_failure(int exit_code) noexcept = 0;
  /// What has become of the others: a sentence if one has failed or the store is gone.
  [[nodiscard]] virtual std::optional<std::string> failure() = 0;
  /// Leaves word that this rank goes on. Never throws. Nothing under MPI, where nothing counts.
  virtual void show_life() noexcept = 0;
  /// How often all ranks have left it; what was there before where the store is gone.
  [[nodiscard]] virtual std::int64_t signs_of_life() noexcept = 0;
};

[[nodiscard]] std::unique_ptr<Rendezvous> meet(const Environment& environment,
                                               double timeout_seconds);

}  // namespace neap::parallel
