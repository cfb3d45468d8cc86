// Host memory of a step's batch of PPO and GRPO, in addition to what is on the device.
//
// Model     A rank has the tokens of its own rows. It also has numbers of the whole batch: those
//           that advantages and rollout correction read, for each response position. All rows are
//           counted with the length of the longest sequence. The result is the maximum of computing
//           advantages and of the updates.
// Threads   a stateless function.
// Failure   none.
// Cost      negligible.
#pragma once

#include "base/bytes.h"
#include "spec/job/job.h"

namespace neap::plan {

/// The largest amount at any time; zero for other tasks.
[[nodiscard]] Bytes batch_bytes(const spec::Job& job);

}  // namespace neap::plan
