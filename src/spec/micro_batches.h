// Whole micro-batches in what each rank has of a step or mini-batch.
//
// Threads   functions without state.
// Failure   Status with the keys, their values and what is possible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job.h"

namespace neap::spec {

/// Of a size in docs/configuration.md.
inline const std::string kAdapts =
    " If it is not set and does not divide a rank's batch, the largest smaller size that does is "
    "used.";

/// Rows that ranks share, and a rank's rows that are cut into micro-batches.
struct BatchDivision {
  std::string rows_key;
  std::int64_t rows = 0;
  std::int64_t sequences_of_row = 1;  ///< that micro-batches are counted in
  std::string micro_key;
  std::int64_t micro = 0;
  std::int64_t ranks = 1;  ///< that share the rows
};
/// Of a job that trains: by ranks along data, of each model, and for its rollouts by those that generate. Packed sequences are cut by
/// tokens, and generations by the plan: `micro` is 1.
[[nodiscard]] std::vector<BatchDivision> batch_divisions(const Job& job);

/// Rows divide evenly among ranks, and a rank's rows into whole micro-batches.
[[nodiscard]] Status check_division(const BatchDivision& division);

/// Sizes of micro-batches that nobody set and that do not divide what a rank has become the largest
/// smaller ones that do. Returns these, "key.path=value" each.
[[nodiscard]] Result<std::vector<std::string>> adapt_micro_batches(const ConfigTable& table,
                                                                   const Job& job);

}  // namespace neap::spec
