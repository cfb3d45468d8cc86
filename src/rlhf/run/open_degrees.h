// Chooses the parallel sizes that are "auto". The first rank chooses once for all ranks.
//
// A run that resumes on the same number of ranks keeps the sizes of its checkpoint.
//
// Threads   one.
// Failure   CollectiveError on every rank if nothing fits.
#pragma once

#include "plan/search/degree_search.h"
#include "rlhf/run/run.h"

namespace neap::rlhf {

/// The job of `open`, loaded again with the chosen sizes. Every rank calls it.
[[nodiscard]] spec::Job close_degrees(const plan::OpenJob& open, const Launch& launch);

}  // namespace neap::rlhf
