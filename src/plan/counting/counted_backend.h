// Predicts the memory and time of phases. It runs their bodies (step/pipeline/runner.h) with counting
// operations, and with weights and data of the job's sizes.
//
// Threads   one.
// Cost      milliseconds: it runs two rounds of each loop, and a few dozen steps of a long
//           generation.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/counting/phase_inputs.h"
#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

/// Packed micro-batches some of whose tensors just fit the allocator's pool for small tensors. Its
/// pages are needed in addition to the pages for larger micro-batches. Sizes in between need less.
/// They are derived from the requests of the largest micro-batch. Empty if the phase is not packed.
[[nodiscard]] std::vector<step::PackedSize> smaller_sizes(const step::KernelProfile& profile,
                                                          const spec::Job& job,
                                                          const JobModels& models,
                                                          step::Dtype dtype,
                                                          const spec::Phase& phase);

/// Runs a phase of `job` with counting operations. For a generation it runs `most_decode_steps`
/// steps, evenly spread and including the longest. Returns the seconds per part if the phase trains
/// a pipeline stage.
PassSeconds count_phase(step::CountingOps& ops, const spec::Job& job, const JobModels& models,
                        step::Dtype dtype, const spec::Phase& phase,
                        std::int64_t most_decode_steps);

}  // namespace neap::plan
