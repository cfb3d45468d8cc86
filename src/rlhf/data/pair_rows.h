// Rows of preference data: prompts with a chosen and a rejected response.
//
// Rows      `prompt`, `chosen` and `rejected` (texts or conversations) and an optional number
//           `margin`. Or `prompt` and `ranking`, a list of responses with the best first, which
//           gives a pair for every two of them. Without a prompt, or if a text comes with whole
//           conversations, the common start of both responses is the prompt, as in TRL.
// Threads   values.
// Failure   Error.
#pragma once

#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "spec/types/data_config.h"

namespace neap::rlhf {

/// A pair as it occurs in a row.
struct PairRow {
  Json prompt, chosen, rejected;
  double margin = 0;
};
/// The pairs of a row. If responses contain the prompt, it is removed from them.
[[nodiscard]] Result<std::vector<PairRow>> pairs_of(const Json& row, const spec::DataConfig& data);

}  // namespace neap::rlhf
