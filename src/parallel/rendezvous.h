// The rendezvous of a GPU job's ranks, before NCCL connects them. Later, ranks report failures and
// signs of life through it.
//
// There are two implementations: libtorch's TCP store at MASTER_ADDR:MASTER_PORT, which torchrun's
// agent or rank 0 serves; or MPI, if mpirun started the job and no address is set.
//
// Threads   share() once; the rest from any.
// Failure   Error.
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
  /// Broadcasts rank 0's bytes; all ranks pass the same size. Every rank has arrived when it
  /// returns.
  virtual void share(std::vector<char>& bytes) = 0;
  /// Reports to the others that this rank fails. Never throws.
  virtual void report_failure(int exit_code) noexcept = 0;
  /// A sentence if another rank has failed or the store is gone; otherwise nullopt.
  [[nodiscard]] virtual std::optional<std::string> failure() = 0;
  /// Reports that this rank is making progress. Never throws. Does nothing under MPI.
  virtual void show_life() noexcept = 0;
  /// The number of signs of life of all ranks, or the last known number if the store is gone.
  [[nodiscard]] virtual std::int64_t signs_of_life() noexcept = 0;
};

[[nodiscard]] std::unique_ptr<Rendezvous> meet(const Environment& environment,
                                               double timeout_seconds);

}  // namespace neap::parallel
