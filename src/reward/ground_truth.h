// The right answer of a row of data.
//
// Threads   stateless functions.
//
// Failure   kCorrupt, naming the field.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::reward {

/// The value at `path` of `row`. If `path` is empty, the first of the usual fields. Null if the row
/// has none.
[[nodiscard]] const Json* ground_truth_field(const Json& row, const std::string& path);

/// The accepted answers at `path` ("reward_model.ground_truth") of `row`. If `path` is empty, the
/// first of the usual fields. The value is a text, a number, or a list of these, and each item is
/// accepted. Never empty.
[[nodiscard]] Result<std::vector<std::string>> ground_truths(const Json& row,
                                                             const std::string& path);

}  // namespace neap::reward
