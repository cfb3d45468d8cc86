// Checks and adapts token budgets of packed micro-batches, which must hold the longest row.
//
// Threads   stateless functions.
// Failure   Status with the key, its value and the smallest valid value.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job/job.h"

namespace neap::spec {

/// Text for a budget in docs/configuration.md.
inline const std::string kHoldsRow =
    " If it is not set, it is at least the length of the longest row.";

/// For packed jobs: checks that the longest row fits every budget.
[[nodiscard]] Status check_token_budgets(const Job& job);

/// Raises budgets that the user did not set, and those of an evaluation, to the longest row. Returns
/// the assignments as "key.path=value".
[[nodiscard]] Result<std::vector<std::string>> adapt_token_budgets(const ConfigTable& table,
                                                                   const Job& job);

}  // namespace neap::spec
