// Checks and adapts micro-batch sizes, which must divide each rank's rows of a step or mini-batch.
//
// Threads   stateless functions.
// Failure   Status with the keys, their values and the possible sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job/job.h"

namespace neap::spec {

/// Text for a micro-batch size in docs/configuration.md.
inline const std::string kAdapts =
    " If it is not set and does not divide a rank's batch, the largest smaller size that does is "
    "used.";

/// Rows that ranks share, and the micro-batches of one rank's rows.
struct BatchDivision {
  std::string rows_key;
  std::int64_t rows = 0;
  std::int64_t sequences_of_row = 1;  ///< sequences per row, if micro-batches count sequences
  std::string micro_key;
  std::int64_t micro = 0;
  std::int64_t ranks = 1;  ///< ranks that share the rows
};
/// All divisions of a job: for each trained model by its data-parallel ranks, and for rollouts by
/// the ranks that generate. `micro` is 1 for packed sequences (cut by tokens) and for rollouts (cut
/// by the plan).
[[nodiscard]] std::vector<BatchDivision> batch_divisions(const Job& job);

/// Checks that rows divide evenly among ranks, and a rank's rows into whole micro-batches.
[[nodiscard]] Status check_division(const BatchDivision& division);

/// Reduces micro-batch sizes that the user did not set to the largest size that divides a rank's
/// rows. Returns the assignments as "key.path=value".
[[nodiscard]] Result<std::vector<std::string>> adapt_micro_batches(const ConfigTable& table,
                                                                   const Job& job);

}  // namespace neap::spec
