// `neap eval` evaluates a checkpoint: it generates responses to a file of prompts, scores them, and
// aggregates as validation does. It has a memory plan of its own.
//
// Ranks     all call it with the same job; the first one writes and returns the valid report.
// Threads   one per process.
// Failure   Error. The file of responses is either complete or missing.
#pragma once

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "rlhf/rollout/evaluation.h"
#include "rlhf/run/run.h"

namespace neap::rlhf {

struct EvaluationReport {
  Evaluation evaluation;
  spec::ValidationSampling sampling;
  std::string rules;  ///< names of the reward functions: "numeric, length"
  Bytes planned_peak, measured_peak;
  double seconds = 0;  ///< for generation and scoring
};

struct EvaluationRequest {
  spec::Job job;  ///< with task eval
  // Lengths that are not set. The prompt length is that of the longest prompt; the response length is
  // what the model's positions leave, at most 1024 tokens.
  bool any_prompt_length = false, any_response_length = false;
  std::filesystem::path responses{};  ///< one line per row; empty: not written
};

/// If the job has no reward functions, they follow from the data's answers: "numeric" if all are
/// numbers, else "symbolic".
[[nodiscard]] EvaluationReport evaluate_checkpoint(EvaluationRequest request, const Launch& launch);

}  // namespace neap::rlhf
