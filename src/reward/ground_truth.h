// The right answer of a row of data.
//
// Threads   functions without state.   Failure   kCorrupt, naming the field.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::reward {

/// The value at `path` of `row`, or, where `path` is empty, that of the first of the usual fields; null
/// where it has none.
[[nodiscard]] const Json* ground_truth_field(const Json& row, const std::string& path);

/// The value at `path` ("reward_model.ground_truth") of `row`, or, where `path` is empty, the first of
/// the usual fields. Text and numbers; of a list, each item is an accepted answer. Never empty.
[[nodiscard]] Result<std::vector<std::string>> ground_truths(const Json& row,
                                                             const std::string& path);

}  // namespace neap::reward
