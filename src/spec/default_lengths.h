// Lengths that nobody set, where the models have fewer positions than the defaults add up to.
//
// Threads   functions without state.
// Failure   Status of a key that cannot be assigned. A model whose config.json cannot be read limits nothing: who reads
//           it next says why.
// Cost      reads the models' config.json.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job.h"

namespace neap::spec {

/// Of a length in docs/configuration.md.
inline const std::string kFollowsPositions =
    " If it is not set and the models have too few positions for both lengths: what the other "
    "length leaves, or half of the positions.";

/// Fits data.max_prompt_length and data.max_response_length to the models' positions. Returns what it set, "key.path=value" each.
[[nodiscard]] Result<std::vector<std::string>> adapt_lengths(const ConfigTable& table,
                                                             const Job& job);

/// What load() fitted (Job::adapted), as a line for people; empty where that is nothing.
[[nodiscard]] std::string adapted_text(const Job& job);

}  // namespace neap::spec
