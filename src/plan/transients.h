// What each phase of a job asks of its transient pool, and what the pool then takes from the device.
//
// Every batch of a job has the same shape, so the prediction depends on the configuration alone.
#pragma once

#include <cstdint>

#include "cache/settings.h"
#include "plan/memory_plan.h"
#include "plan/tags.h"
#include "step/counting_ops.h"

namespace neap::plan {

/// Settings of the phase pools: memory.alloc_conf, or by default expandable segments with pages of
/// 2 MiB, so that a pool holds what its tensors need and no more. On CUDA libtorch's allocator runs
/// under PYTORCH_CUDA_ALLOC_CONF, which the bridge sets to expandable segments where the user has
/// not set it.
[[nodiscard]] Result<cache::Settings> pool_settings(const spec::Job& job, const Target& target);

/// What the operations of a job's phases depend on.
/// `phase`: null of those that train and score; ranks may divide a model otherwise where it generates.
[[nodiscard]] step::KernelProfile kernel_profile(const spec::Job& job, const Target& target,
                                                 const spec::Phase* phase = nullptr);

enum class Accuracy : std::uint8_t {
  kExact,  ///< two rounds of each loop: later ones find the pool as the second left it
  kQuick,  ///< one round, for a search: the same seconds, and a peak that a later round may pass
};
/// Peaks of a phase. Fails on unknown allocator settings.
[[nodiscard]] Result<PhasePlan> predict_phase(const spec::Job& job, const JobModels& models,
                                              const Target& target, const spec::Phase& phase,
                                              Accuracy accuracy = Accuracy::kExact);

/// Whether a second run of a phase takes no more than the first where it begins with its pages: PhasePlan::keeps_pool,
/// which make_plan() fills. Only a run asks, and it takes as long as two predictions.
[[nodiscard]] Result<bool> keeps_pool(const spec::Job& job, const JobModels& models,
                                      const Target& target, const spec::Phase& phase);

}  // namespace neap::plan
