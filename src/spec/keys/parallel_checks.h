// Checks that the job has the number of ranks that were started, and that its parallel sizes are
// valid together.
//
// Threads   a stateless function.
// Failure   kInvalidArgument with the sizes that would be valid.
#pragma once

#include "base/status.h"
#include "spec/job/job.h"

namespace neap::spec {

[[nodiscard]] Status check_ranks(const Job& job);

}  // namespace neap::spec
