// Whether a job's ranks are those that were started, and what they divide goes together.
//
// Threads   a function without state.   Failure   kInvalidArgument, with the sizes that would do.
#pragma once

#include "base/status.h"
#include "spec/job.h"

namespace neap::spec {

[[nodiscard]] Status check_ranks(const Job& job);

}  // namespace neap::spec
