// Generates responses to held-out prompts, scores and aggregates them. Used by validation in
// training and by `neap eval`.
//
// Memory    prompts are processed in parts of a few batches; host memory holds the tensors of one
//           part.
// Ranks     each rank answers its share; every rank gets the metrics of the whole set.
// Threads   one at a time.
// Failure   Error; StepFailure if a reward function fails.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reward/evaluation.h"
#include "rlhf/experience/experience.h"
#include "rlhf/rollout/reward_scorer.h"

namespace neap::rlhf {

/// A response to a held-out prompt.
struct EvaluatedResponse {
  std::size_t row = 0;    ///< index in the set
  std::int64_t turn = 0;  ///< number among the prompt's n responses
  report::Rollout sample;
  const reward::Outcome& outcome;
  /// Values of RewardScorer::columns; NaN if a function gives none.
  std::span<const double> numbers;
};

/// The inputs of an evaluation.
struct EvaluationSetup {
  train::ModelWorker& actor;
  train::ModelWorker* reward_model = nullptr;
  RewardScorer& functions;
  spec::ValidationSampling sampling;
  std::uint64_t key = 0;  ///< key of the random streams
  /// Adds data such as log-probabilities to this rank's responses.
  std::function<void(Experience&)> add{};
  /// Reports how many responses of this rank have ended. A part is scored after all its responses
  /// have ended.
  std::function<void(std::size_t ended)> on_progress{};
  /// Called for each response, in the order of prompts with n responses each.
  std::function<void(const EvaluatedResponse&)> on_response{};
};

/// The key of the random streams of a job's validation. An evaluation with the same seed and
/// sampling settings gives the same responses.
[[nodiscard]] std::uint64_t validation_key(const spec::Job& job);

/// Metrics of the rows of one data source.
struct SourceFigures {
  std::string source;
  std::size_t rows = 0;
  reward::Figures figures;
};

struct Evaluation {
  Metrics metrics;    ///< "val/score/mean", "val-core/SOURCE/acc/mean@4"
  SourceFigures all;  ///< over all rows; its source is empty
  /// In order of first occurrence; empty if no row has a source.
  std::vector<SourceFigures> sources;
};

[[nodiscard]] Evaluation evaluate(Context& context, const std::vector<PromptRow>& rows,
                                  const EvaluationSetup& setup);

}  // namespace neap::rlhf
