// The data of one step: responses to prompts with log-probabilities, values and scores.
//
// Each function is one phase of a step. Results are in ordinary host memory. Ranks make experience
// for their share of the prompts. Each rank has numbers of the whole batch (gather_numbers), and
// tokens of its own rows.
//
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/row_deal.h"
#include "rlhf/trainer/trainer.h"
#include "rollout/generator.h"
#include "step/generation/sampling.h"
#include "step/model/batch.h"

namespace neap::rlhf {

/// The rows of this rank, (B, T) on the host. Reference and values are undefined if the job has no
/// such model.
struct Experience : step::Experience<at::Tensor> {
  at::Tensor entropy;       // (B, T)
  at::Tensor scores;        // (B,) weighted sum of the reward model and the functions
  at::Tensor model_scores;  // (B,) of the reward model alone; undefined without one
  at::Tensor baselines;     // (B,) scores of the greedy responses to the same prompts; ReMax only
  at::Tensor numbers;       // (B, columns) values of RewardScorer; undefined without functions
  at::Tensor rows;          // (B,) int64: index of the prompt's training row
  at::Tensor truncated;     // (B,) 1 if the response ends with neither an end token nor a stop text
  at::Tensor rollout_log_probs;  // (B, T) as sampled; undefined unless the job stores them
  // (ranks B,) float64: tokens in the loss mask of each sequence of the whole batch
  at::Tensor batch_tokens;
};

/// Replaces every tensor that has a row per sequence by f(tensor). Undefined tensors stay
/// undefined.
void transform_rows(Experience& e, const std::function<at::Tensor(const at::Tensor&)>& f);
/// Moves the defined tensors of `other` into `e`.
void take_rows(Experience& e, Experience other);
/// Concatenates rows. All parts must have the same tensors defined.
[[nodiscard]] Experience join(std::vector<Experience> parts);

/// Settings of a generation.
struct Generation {
  spec::PhaseId phase = spec::PhaseId::kGenerate;
  std::int64_t n = 1;  ///< responses per prompt
  step::SamplingOptions sampling;
  /// Key of the random streams, which also depend on a prompt's place in the whole batch.
  std::uint64_t key = 0;
  /// Place of the first prompt, if this batch is part of a larger one.
  std::size_t first_prompt = 0;
  /// Reports the number of ended responses of this rank.
  std::function<void(std::size_t ended)> on_progress{};
};
/// Generates responses to this rank's prompts: the sequences, `truncated`, and `rollout_log_probs`
/// if the sampling options request them. rlhf/experience/generation_share.h decides which prompts this rank
/// processes.
[[nodiscard]] Experience generate_responses(Context& context, train::ModelWorker& actor,
                                            const std::vector<train::Tokens>& prompts,
                                            const Generation& generation);

/// Numbers of tokens of each sequence and of its response.
struct RowCounts {
  explicit RowCounts(const train::Sequences& sequences);
  std::vector<std::int64_t> sequences, responses;
};
/// Gathers the rows of all ranks in `deal`; `counts` belong to `deal`. Only tokens before the
/// padding are sent. Advantages, returns, weights and noise are not included, because they are
/// computed from whole batches.
void gather_rows(Experience& e, const parallel::RowDeal& deal, const RowCounts& counts,
                 std::int64_t pad);

/// All ranks' experience in the batch's order, limited to the first `rows` sequences. Each prompt
/// has `n` responses.
[[nodiscard]] Experience gather_experience(Context& context, const Experience& mine, std::int64_t n,
                                           std::int64_t rows);
/// As gather_experience, without tokens, columns and targets.
[[nodiscard]] Experience gather_numbers(Context& context, const Experience& mine, std::int64_t n,
                                        std::int64_t rows);
/// Moves sequences from the assignment `has` to the assignment `wants`; `counts` are the batch's.
/// Masks must cover whole responses.
[[nodiscard]] train::Sequences send_sequences(Context& context, const train::Sequences& mine,
                                              const parallel::RowDeal& has,
                                              const parallel::RowDeal& wants,
                                              const RowCounts& counts);

/// Log-probabilities (B, T) of the response tokens under `model`. The entropy is included if the
/// phase has it. A phase with body kCrossEntropy also marks with 1 each token that has the highest
/// probability.
struct TokenLogProbs {
  at::Tensor log_probs, entropy, right;
};
[[nodiscard]] TokenLogProbs response_log_probs(Context& context, ops::Transformer& model,
                                               const train::Sequences& sequences,
                                               spec::PhaseId phase);
/// As above, while `phase` is open. With pipeline stages only the last stage has the result.
[[nodiscard]] TokenLogProbs log_probs_in_phase(Context& context, ops::Transformer& model,
                                               const train::Sequences& sequences,
                                               spec::PhaseId phase);
/// Phase "values": the critic's value before each response token, (B, T).
[[nodiscard]] at::Tensor response_values(Context& context, train::ModelWorker& critic,
                                         const train::Sequences& sequences);
/// One score per sequence (B,), taken at its last token before padding.
[[nodiscard]] at::Tensor response_scores(Context& context, train::ModelWorker& reward,
                                         const train::Sequences& sequences,
                                         spec::PhaseId phase = spec::PhaseId::kRewards);

/// (B, T): `scores` at the last response token of each sequence.
[[nodiscard]] at::Tensor place_at_end(const at::Tensor& scores, const at::Tensor& mask);

}  // namespace neap::rlhf
