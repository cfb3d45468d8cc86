// A training run from its configuration to its last checkpoint and report.
//
//   OUTPUT/plan.json, memory.ntrace, phases.jsonl, metrics.jsonl, tensorboard/, report.html   (report/)
//   OUTPUT/validation.jsonl   judgements and sample texts
//   OUTPUT/global_step_N/     checkpoints (train/checkpoint.h), with trainer.json beside the models
//
// Threads   one run a process.   Failure   Error; what was written stays whole.
#pragma once

#include "plan/job.h"

namespace neap::rlhf {

enum class Outcome {
  kDone,
  kAlreadyDone,  ///< the checkpoint to resume from is the last step's
  kInterrupted   ///< by SIGINT or SIGTERM; a checkpoint of the last whole step is there
};

/// Runs the job. Plan, samples, table and memory lines go to stdout, progress to stderr.
[[nodiscard]] Outcome run(const plan::Job& job);

}  // namespace neap::rlhf
