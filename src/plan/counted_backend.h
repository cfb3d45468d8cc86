// What phases ask of memory and time, by running their bodies (step/runner.h) over operations that
// count, with weights and data of the job's sizes.
//
// Cost   milliseconds: two rounds are run of each loop, and of a long generation a few dozen steps.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/phase_inputs.h"
#include "plan/tags.h"
#include "step/counting_ops.h"

namespace neap::plan {

/// Packed micro-batches in which tensors of some width are as large as the allocator's pool of small tensors takes. Its
/// pages are needed in addition to those of the larger micro-batches, and between two of these sizes it holds less.
/// They follow from the requests of the largest micro-batch. None where the phase packs nothing.
[[nodiscard]] std::vector<step::PackedSize> smaller_sizes(const step::KernelProfile& profile,
                                                          const spec::Job& job,
                                                          const JobModels& models,
                                                          step::Dtype dtype,
                                                          const spec::Phase& phase);

/// Runs a phase of `job` over counting operations. `most_decode_steps`: of a generation so many,
/// evenly spread, the longest included. Returns the seconds of its parts where it trains a stage of a pipeline.
PassSeconds count_phase(step::CountingOps& ops, const spec::Job& job, const JobModels& models,
                        step::Dtype dtype, const spec::Phase& phase,
                        std::int64_t most_decode_steps);

}  // namespace neap::plan
