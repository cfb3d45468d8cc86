// A training run from its configuration to its last checkpoint and report.
//
//   OUTPUT/plan.json, memory.ntrace (of the last run that trained), phases.jsonl, metrics.jsonl, tensorboard/, report.html   (report/)
//   OUTPUT/validation.jsonl   figures of held-out data and sample texts
//   OUTPUT/global_step_N/     checkpoints (train/checkpoint.h), with the models and trainer.json
//   OUTPUT/reference_log_probs.safetensors   of DPO, where they are computed once (reference_log_probs.h)
//   OUTPUT/train.lock         locked while a run works in the folder (train/output_lock.h)
//   OUTPUT/ranks/N/           plan.json, memory.ntrace and phases.jsonl of rank N, for N > 0
//
// Ranks     all call run with the same job; the first prints and writes, the others print only warnings. What
//           is wrong before the first step fails on all (parallel::CollectiveError); a rank that fails
//           later throws, and the caller ends the others with Communicator::abort.
// Settings  of libtorch are the run's until it ends (bridge/device_context.h): a process may run one job after the other.
// Threads   one run at a time in a process.   Failure   Error; files that were written stay complete.
#pragma once

#include <memory>

#include "parallel/communicator.h"
#include "plan/device_choice.h"
#include "spec/job.h"

namespace neap::rlhf {

enum class Outcome {
  kDone,
  kAlreadyDone,  ///< the checkpoint to resume from is the last step's
  kInterrupted   ///< by SIGINT, SIGTERM or SIGHUP; a checkpoint of the last whole step is there
};

/// What a process runs on: chosen once, for the plan and for the run.
struct Launch {
  plan::DeviceChoice device;
  std::unique_ptr<parallel::Communicator> ranks;
};
/// Joins the ranks that the launcher started: sets the job's GPU to this rank's, chooses the device and
/// connects the ranks.
[[nodiscard]] Launch join_ranks(spec::Job& job, const parallel::Environment& environment);

/// Runs the job. Plan, samples, table and memory lines go to stdout, progress to stderr.
[[nodiscard]] Outcome run(const spec::Job& job, const Launch& launch);

}  // namespace neap::rlhf
