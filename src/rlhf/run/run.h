// A training run, from its configuration to its last checkpoint and report.
//
//   OUTPUT/plan.json, phases.jsonl, metrics.jsonl, tensorboard/, report.html   (report/)
//   OUTPUT/memory.ntrace         of the last run that trained
//   OUTPUT/validation.jsonl      metrics of held-out data and sample texts
//   OUTPUT/global_step_N/        checkpoints (train/checkpoint.h), with the models and trainer.json
//   OUTPUT/experience/step_N.safetensors     with trainer.experience = "keep" (kept_steps.h)
//   OUTPUT/reference_log_probs.safetensors   of DPO, if precomputed (reference_log_probs.h)
//   OUTPUT/train.lock            locked while a run uses the folder (train/output_lock.h)
//   OUTPUT/ranks/N/              plan.json, memory.ntrace and phases.jsonl of rank N, for N > 0
//
// Ranks     all call run() with the same job. The first prints and writes; the others print only
//           warnings. An error before the first step fails on all ranks
//           (parallel::CollectiveError). A rank that fails later throws, and the caller ends the
//           others with Communicator::abort.
// Settings  libtorch's settings belong to the run until it ends (bridge/device_context.h). A
//           process may run several jobs in turn.
// Threads   one run at a time per process.
// Failure   Error; files that were written stay complete.
#pragma once

#include <memory>

#include "parallel/communicator.h"
#include "plan/rates/device_choice.h"
#include "spec/job/job.h"

namespace neap::rlhf {

enum class Outcome {
  kDone,
  kAlreadyDone,  ///< the checkpoint to resume from is already the last step's
  kInterrupted   ///< by SIGINT, SIGTERM or SIGHUP; there is a checkpoint of the last whole step
};

/// The device and ranks of a process. They are chosen once, for the plan and for the run.
struct Launch {
  plan::DeviceChoice device;
  std::unique_ptr<parallel::Communicator> ranks;
};
/// Joins the ranks that the launcher started: sets the job's GPU for this rank, chooses the device
/// and connects the ranks.
[[nodiscard]] Launch join_ranks(spec::Job& job, const parallel::Environment& environment);

/// Runs the job. Plan, samples, tables and memory lines go to stdout, progress to stderr.
[[nodiscard]] Outcome run(const spec::Job& job, const Launch& launch);

}  // namespace neap::rlhf
