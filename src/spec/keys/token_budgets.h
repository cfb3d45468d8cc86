// Checks and adapts token budgets of packed micro-batches, which must hold the longest row.
//
// Threads   stateless functions.
// Failure   Status with the key, its value and the smallest valid value.
#pragma once

#include <functional>
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

/// Raises budgets to the longest row, unless the user set them for this task. `for_another` tells by
/// a key's origin that it was set for another: an evaluation reads the configuration of a training,
/// whose rows and ranks were others. Returns the assignments as "key.path=value".
[[nodiscard]] Result<std::vector<std::string>> adapt_token_budgets(
    const ConfigTable& table, const Job& job,
    const std::function<bool(const std::string& origin)>& for_another);

}  // namespace neap::spec
