// Host memory of a step's batch of PPO and GRPO, besides what a device has of it.
//
// Model     A rank has the tokens of its own rows. Of the whole batch it has numbers: of each place of a response those
//           that advantages and the correction of the rollout read. Rows are padded to the longest sequence, and all
//           are counted as long as that. Advantages or the updates take most, whichever is more.
// Threads   a function without state.   Failure   none.   Cost   none.
#pragma once

#include "base/bytes.h"
#include "spec/job.h"

namespace neap::plan {

/// The most that a rank has at once; zero of other tasks.
[[nodiscard]] Bytes batch_bytes(const spec::Job& job);

}  // namespace neap::plan
