// Default prompt and response lengths for models with too few positions for the usual defaults.
// Keys that the user set are kept.
//
// Threads   stateless functions.
// Failure   Status of a key that cannot be assigned. A model whose config.json cannot be read sets
//           no limit; a later reader reports the error.
// Cost      reads the models' config.json.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "spec/job/job.h"

namespace neap::spec {

/// Text for a length in docs/configuration.md.
inline const std::string kFollowsPositions =
    " If it is not set and the models have too few positions for both lengths: what the other "
    "length leaves, or half of the positions.";

/// Fits data.max_prompt_length and data.max_response_length to the models' positions. Returns the
/// assignments as "key.path=value".
[[nodiscard]] Result<std::vector<std::string>> adapt_lengths(const ConfigTable& table,
                                                             const Job& job);

/// The adjustments of load() (Job::adapted) as a line of text; empty if there were none.
[[nodiscard]] std::string adapted_text(const Job& job);

}  // namespace neap::spec
