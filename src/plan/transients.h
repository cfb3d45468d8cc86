// What each phase of a job asks of its transient pool, and what the pool then takes from the device.
//
// Source   the loops are those of src/rlhf (sft.cpp, reward.cpp, ppo.cpp, experience.cpp) and
//          src/rollout/generator.cpp. Every batch of a job has the same shape, so the prediction
//          depends on the configuration alone.
// Cost     milliseconds: two micro batches of each phase stand for all, and of a long generation a
//          few dozen steps.
#pragma once

#include <string>
#include <vector>

#include "plan/network_stream.h"

namespace neap::plan {

/// Settings of the phase pools: memory.alloc_conf, or by default expandable segments with pages of 2 MiB, so that a pool
/// holds what its tensors need and nothing beside. On CUDA libtorch's allocator runs under PYTORCH_CUDA_ALLOC_CONF, which
/// the bridge sets to expandable segments where the user has not set it.
[[nodiscard]] Result<cache::Settings> pool_settings(const spec::Job& job, const Target& target);

[[nodiscard]] Execution execution_of(const spec::Job& job, const Target& target);

/// Runs one phase's requests through `stream`. Fails for a phase that there is not.
[[nodiscard]] Status stream_phase(TensorStream& stream, const spec::Job& job,
                                  const JobModels& models, const Execution& execution,
                                  const std::string& phase);

/// Peaks of every phase. Fails on settings that the allocator does not know.
[[nodiscard]] Result<std::vector<PhasePlan>> predict_transients(
    const spec::Job& job, const JobModels& models, const Target& target,
    const std::vector<std::string>& phases);

}  // namespace neap::plan
