// The first stage of a training run: ranks agree on the job, lock its output folder, and find the
// step that it continues from.
//
// Threads   one at a time.
// Failure   Error on every rank; a parallel::CollectiveError if there are several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/groups.h"
#include "plan/rates/device_choice.h"
#include "rlhf/data/job_data.h"
#include "rlhf/run/live_job.h"
#include "rlhf/run/resume_point.h"
#include "rlhf/trainer/best_checkpoint.h"
#include "rlhf/trainer/output_folder.h"
#include "rlhf/trainer/run_output.h"
#include "rlhf/trainer/stop_target.h"
#include "spec/job/job.h"
#include "spec/ranks/rank_kinds.h"

namespace neap::rlhf {

/// Texts, rows and reward functions of a training job. The job must outlive them.
struct RunInputs {
  RunInputs(const spec::Job& job, std::int64_t threads, int ranks);
  [[nodiscard]] LiveInputs live() { return {texts.context, data, rewards}; }

  JobTexts texts;
  reward::RewardSet rewards;
  JobData data;
};

/// How far a run is. With the trainer's state, it is what a checkpoint holds.
struct RunPosition {
  std::int64_t step = 0;  ///< finished steps
  BestCheckpoint best;
  StopTarget stop;
};

class RunStart {
 public:
  RunStart(const spec::Job& configured, const plan::DeviceChoice& device_choice,
           parallel::Communicator& communicator);
  RunStart(const RunStart&) = delete;
  RunStart& operator=(const RunStart&) = delete;

  /// Whether no step is left. Logs why.
  [[nodiscard]] bool is_done() const;
  /// Reads the inputs on the first call.
  [[nodiscard]] RunInputs& inputs();

  spec::Job job;  ///< the plan's choices are added to it (run_plan.h)
  const plan::DeviceChoice& device;
  parallel::Communicator& ranks;
  const std::vector<spec::RankKind> kinds;
  const parallel::JobGroups groups;
  OutputFolder output;  ///< locked by the first rank
  RunFolders folders;
  ResumePoint resume;
  RunPosition position;
  std::int64_t total_steps = 0;

 private:
  [[nodiscard]] std::int64_t count_steps();

  std::unique_ptr<RunInputs> inputs_;  // null: not read yet
};

}  // namespace neap::rlhf
