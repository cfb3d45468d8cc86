// The degrees that a job leaves open ("auto"), for a run: chosen once, on the first rank, for all.
//
// A run that resumes on as many ranks keeps those of its checkpoint.
//
// Threads   one.   Failure   CollectiveError where none fits, on every rank.
#pragma once

#include "plan/degree_search.h"
#include "rlhf/run.h"

namespace neap::rlhf {

/// The job of `open` with its degrees, read again. Every rank calls it.
[[nodiscard]] spec::Job close_degrees(const plan::OpenJob& open, const Launch& launch);

}  // namespace neap::rlhf
