// `neap eval`: a checkpoint's responses to a file of prompts, scored and summed up as validation in
// training is, under a memory plan of its own.
//
// Ranks     all call it with the same job; the first writes and gets the report that counts.
// Threads   one a process.   Failure   Error; a file of responses is complete or not there.
#pragma once

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "rlhf/evaluation.h"
#include "rlhf/run.h"

namespace neap::rlhf {

struct EvaluationReport {
  Evaluation evaluation;
  spec::ValidationSampling sampling;
  std::string rules;  ///< that scored the responses: "numeric, length"
  Bytes planned_peak, measured_peak;
  double seconds = 0;  ///< of generating and scoring
};

struct EvaluationRequest {
  spec::Job job;  ///< of task eval
  // Lengths that the job leaves open: of the longest prompt, and what the model's positions leave up
  // to 1024 tokens.
  bool any_prompt_length = false, any_response_length = false;
  std::filesystem::path responses{};  ///< a line for each row; empty: none
};

/// Where the job has no rewards the rows' right answers decide: rule "numeric" if all are numbers,
/// else "symbolic".
[[nodiscard]] EvaluationReport evaluate_checkpoint(EvaluationRequest request, const Launch& launch);

}  // namespace neap::rlhf
