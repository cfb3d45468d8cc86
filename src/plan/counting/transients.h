// Predicts what each phase of a job requests from its pool of temporaries, and what the pool then
// reserves on the device.
//
// Every batch of a job has the same shape, so the prediction depends only on the configuration.
//
// Threads   stateless functions.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/settings.h"
#include "plan/counting/counted_memory.h"
#include "plan/counting/tags.h"
#include "plan/results/memory_plan.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

/// Settings of the phase pools: memory.alloc_conf. The default is expandable segments with pages of
/// 2 MiB, so that a pool reserves only what its tensors need. On CUDA, libtorch's allocator uses
/// PYTORCH_CUDA_ALLOC_CONF, which the bridge sets to expandable segments unless the user has set
/// it.
[[nodiscard]] Result<cache::Settings> pool_settings(const spec::Job& job, const Target& target);

/// The settings that the operations of a job's phases depend on. `phase` is null for phases that
/// train and score; rollouts may use another tensor-parallel size.
[[nodiscard]] step::KernelProfile kernel_profile(const spec::Job& job, const Target& target,
                                                 const spec::Phase* phase = nullptr);

enum class Accuracy : std::uint8_t {
  kExact,  ///< two rounds of each loop: later rounds start with the same pool
  kQuick,  ///< one round, for a search: the same time, but a later round may have a higher peak
};
/// Peaks of a phase. Fails for unknown allocator settings.
[[nodiscard]] Result<PhasePlan> predict_phase(const spec::Job& job, const JobModels& models,
                                              const Target& target, const spec::Phase& phase,
                                              Accuracy accuracy = Accuracy::kExact);

/// A pool whose pages stay from phase to phase.
class SharedPool {
 public:
  SharedPool(const cache::Settings& settings, const step::KernelProfile& profile);
  ~SharedPool();
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  /// Counts a run of `phase`. Returns the bytes that the pool then has reserved. Takes as long as
  /// predict_phase().
  [[nodiscard]] Result<Bytes> run(const spec::Job& job, const JobModels& models,
                                  const Target& target, const spec::Phase& phase);
  /// Frees the pages that no tensor uses.
  void give_back() { memory_.give_back(); }

 private:
  struct Workspaces;
  CountedMemory memory_;
  std::unique_ptr<Workspaces> workspaces_;  // of cuBLAS
};

}  // namespace neap::plan
