// Tokens of packed micro-batches against the longest row.
//
// Threads   functions without state.
// Failure   Status with the key, its value and the least that it can be.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job.h"

namespace neap::spec {

/// Of a budget in docs/configuration.md.
inline const std::string kHoldsRow =
    " If it is not set it is as large as the longest row asks for.";

/// Of a job that packs: the longest row fits into every budget.
[[nodiscard]] Status check_token_budgets(const Job& job);

/// Budgets that nobody set and that the longest row does not fit into become as large as it. Returns these,
/// "key.path=value" each.
[[nodiscard]] Result<std::vector<std::string>> adapt_token_budgets(const ConfigTable& table,
                                                                   const Job& job);

}  // namespace neap::spec
