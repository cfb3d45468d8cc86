// Writes the experience of a step to a file, and reads it back. Each rank gets the rows that it
// would have after a rollout.
//
// Ranks     all call these functions. The first writes; every rank reads.
// Threads   one at a time.
// Failure   StepFailure, as of a file that cannot be written or read.
// Memory    the whole batch in host memory of each rank (plan/counting/batch_memory.h).
#pragma once

#include <cstdint>
#include <filesystem>

#include "parallel/row_deal.h"
#include "rlhf/experience/experience.h"
#include "rlhf/trainer/kept_steps.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

class ExperienceKeeper {
 public:
  /// `context` must outlive it.
  explicit ExperienceKeeper(Context& context)
      : context_(context), folder_(context.job.output_folder() / kExperienceFolder) {}

  /// Keeps the experience of step `step`, counted from 0. `mine` are this rank's rows of `deal`,
  /// `counts` those of the whole batch. `metrics` are those of the step so far.
  void keep(std::int64_t step, std::int64_t steps_per_epoch, const Experience& mine,
            const parallel::RowDeal& deal, const RowCounts& counts, const Metrics& metrics);

 private:
  /// Call it before the first step. Removes files of later steps that an earlier process wrote, and
  /// logs how much disk the steps take.
  void begin(std::int64_t step);

  Context& context_;
  std::filesystem::path folder_;
  bool begun_ = false;
};

/// This rank's rows of step `step`, counted from 0. Adds the metrics of the experience.
[[nodiscard]] Experience read_experience(Context& context, const KeptSteps& steps,
                                         std::int64_t step, Metrics& metrics);

}  // namespace neap::rlhf
