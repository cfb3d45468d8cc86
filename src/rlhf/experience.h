// The data of one step: responses to prompts with their log-probabilities, values and scores.
//
// Each function is one phase of the step's cycle; its results are plain host memory. Ranks make
// experience for their share of the prompts. Each sees numbers of the whole batch (gather_numbers), and has tokens of its own
// rows.
// Threads   one at a time.   Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/row_deal.h"
#include "rlhf/trainer.h"
#include "rollout/generator.h"
#include "step/batch.h"
#include "step/sampling.h"

namespace neap::rlhf {

/// Of this rank, (B, T) on the host; reference and values are undefined without such a model.
struct Experience : step::Experience<at::Tensor> {
  at::Tensor entropy;       // (B, T)
  at::Tensor scores;        // (B,) of the reward model and the functions, by weight
  at::Tensor model_scores;  // (B,) of the reward model alone; undefined without one
  at::Tensor baselines;     // (B,) scores of the greedy responses to the same prompts; ReMax only
  at::Tensor numbers;       // (B, columns) of RewardScorer; undefined without functions
  at::Tensor rows;          // (B,) int64: the prompt's among the training rows
  at::Tensor truncated;     // (B,) 1 where neither an end token nor a stop text ends a response
  at::Tensor rollout_log_probs;  // (B, T) as sampled; undefined unless the job keeps them
  at::Tensor
      batch_tokens;  // (ranks B,) float64: tokens in the masks of the loss, of the whole batch
};

/// Makes every tensor with a row for each sequence another one; those that are undefined stay.
void transform_rows(Experience& e, const std::function<at::Tensor(const at::Tensor&)>& f);
/// What `other` has of these tensors.
void take_rows(Experience& e, Experience other);
/// The rows of all, in order. Each has the same tensors.
[[nodiscard]] Experience join(std::vector<Experience> parts);

/// How responses are made.
struct Generation {
  spec::PhaseId phase = spec::PhaseId::kGenerate;
  std::int64_t n = 1;  ///< responses to each prompt
  step::SamplingOptions sampling;
  std::uint64_t key = 0;  ///< of the random streams, with a prompt's place in the whole batch
  std::size_t first_prompt = 0;  ///< place of the batch's first prompt, where it is part of more
  /// Of the responses that this rank generates.
  std::function<void(std::size_t ended)> on_progress{};
};
/// Responses to this rank's prompts: the sequences, `truncated`, and `rollout_log_probs` where the
/// sampling options ask for them. Which prompts a rank answers for that: rlhf/generation_share.h.
[[nodiscard]] Experience generate_responses(Context& context, train::ModelWorker& actor,
                                            const std::vector<train::Tokens>& prompts,
                                            const Generation& generation);

/// Tokens of each sequence and of its response.
struct RowCounts {
  explicit RowCounts(const train::Sequences& sequences);
  std::vector<std::int64_t> sequences, responses;
};
/// Each tensor becomes that of all rows by `deal`, whose `counts` these are: only tokens that are there are sent. Without
/// advantages, returns, weights and noise, which come from whole batches.
void gather_rows(Experience& e, const parallel::RowDeal& deal, const RowCounts& counts,
                 std::int64_t pad);

/// Every rank's experience in the batch's order: the first `rows` sequences. `n` answer a prompt.
[[nodiscard]] Experience gather_experience(Context& context, const Experience& mine, std::int64_t n,
                                           std::int64_t rows);
/// The same without tokens, columns and targets.
[[nodiscard]] Experience gather_numbers(Context& context, const Experience& mine, std::int64_t n,
                                        std::int64_t rows);
/// Sequences of this rank's rows by `has` become those of its rows by `wants`; `counts` are the batch's. Masks are those of
/// whole responses.
[[nodiscard]] train::Sequences send_sequences(Context& context, const train::Sequences& mine,
                                              const parallel::RowDeal& has,
                                              const parallel::RowDeal& wants,
                                              const RowCounts& counts);

/// Log-probabilities of the responses' tokens under `model`, (B, T), and their entropy where the phase
/// has it. In a phase with body kCrossEntropy also 1 for each token that no other is likelier than.
struct TokenLogProbs {
  at::Tensor log_probs, entropy, right;
};
[[nodiscard]] TokenLogProbs response_log_probs(Context& context, ops::Transformer& model,
                                               const train::Sequences& sequences,
                                               spec::PhaseId phase);
/// The same while `phase` is open; of several stages only the last one has them.
[[nodiscard]] TokenLogProbs log_probs_in_phase(Context& context, ops::Transformer& model,
                                               const train::Sequences& sequences,
                                               spec::PhaseId phase);
/// Phase "values": the critic's value before each token of the response, (B, T).
[[nodiscard]] at::Tensor response_values(Context& context, train::ModelWorker& critic,
                                         const train::Sequences& sequences);
/// One score a sequence, (B,), read at its last token that is not padding.
[[nodiscard]] at::Tensor response_scores(Context& context, train::ModelWorker& reward,
                                         const train::Sequences& sequences,
                                         spec::PhaseId phase = spec::PhaseId::kRewards);

/// (B, T): `scores` at each sequence's last response token.
[[nodiscard]] at::Tensor place_at_end(const at::Tensor& scores, const at::Tensor& mask);

}  // namespace neap::rlhf
