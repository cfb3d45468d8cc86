// Held-out prompts answered, scored and summed up: validation in training, and `neap eval`.
//
// Memory    prompts go through in parts of a few batches, so that the host holds the tensors of a part.
// Ranks     each answers its share; metrics are the whole set's everywhere.
// Threads   one at a time.   Failure   Error; StepFailure where a reward function fails.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reward/evaluation.h"
#include "rlhf/experience.h"
#include "rlhf/reward_scorer.h"

namespace neap::rlhf {

/// A response to a held-out prompt.
struct EvaluatedResponse {
  std::size_t row = 0;    ///< of the set
  std::int64_t turn = 0;  ///< which of the prompt's n responses
  report::Rollout sample;
  const reward::Outcome& outcome;
  std::span<const double> numbers;  ///< of RewardScorer::columns; NaN where a function gives none
};

/// Whom to ask and how.
struct EvaluationSetup {
  train::ModelWorker& actor;
  train::ModelWorker* reward_model = nullptr;
  RewardScorer& functions;
  spec::ValidationSampling sampling;
  std::uint64_t key = 0;  ///< of the random streams
  /// Adds to this rank's responses, as log-probabilities.
  std::function<void(Experience&)> add{};
  /// On this rank, how many responses have ended; a part's scores come after its responses.
  std::function<void(std::size_t ended)> on_progress{};
  /// Every response in the order of the prompts, n to each.
  std::function<void(const EvaluatedResponse&)> on_response{};
};

/// Of the random streams of a job's validation. An evaluation with the same seed and sampling gives the
/// same responses.
[[nodiscard]] std::uint64_t validation_key(const spec::Job& job);

/// Figures of the rows of one data source.
struct SourceFigures {
  std::string source;
  std::size_t rows = 0;
  reward::Figures figures;
};

struct Evaluation {
  Metrics metrics;                     ///< "val/score/mean", "val-core/SOURCE/acc/mean@4"
  SourceFigures all;                   ///< of every row; its source is empty
  std::vector<SourceFigures> sources;  ///< in the order of the rows; none where no row names one
};

[[nodiscard]] Evaluation evaluate(Context& context, const std::vector<PromptRow>& rows,
                                  const EvaluationSetup& setup);

}  // namespace neap::rlhf
