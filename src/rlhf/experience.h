// What a step learns from: responses to prompts with their log-probabilities, values and scores.
//
// Each function is one phase of the step's cycle; its results are plain host memory.
// Threads   one at a time.   Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rlhf/stage.h"
#include "rollout/generator.h"

namespace neap::rlhf {

struct Experience {
  std::vector<train::Tokens> prompts;
  std::vector<rollout::Response> responses;
  std::vector<std::int64_t> group;  ///< number of the prompt that a sequence answers
  train::Sequences sequences;
  at::Tensor old_log_probs;  // (B, T)
  at::Tensor entropy;        // (B, T)
  at::Tensor ref_log_probs;  // (B, T); undefined without a reference
  at::Tensor values;         // (B, T); undefined without a critic
  at::Tensor scores;         // (B,) of the reward model
  at::Tensor token_scores;   // (B, T): the score at the last token, else 0
  at::Tensor advantages;     // (B, T)
  at::Tensor returns;        // (B, T)
};

/// Phase "generate": `n` responses to each prompt; `key` starts their random streams.
void generate_responses(Context& context, train::Role& actor,
                        const std::vector<train::Tokens>& prompts, std::int64_t n,
                        std::uint64_t key, Experience& out);

/// Log-probabilities of the responses' tokens under `model`, (B, T), and their entropy if asked.
struct TokenLogProbs {
  at::Tensor log_probs, entropy;
};
[[nodiscard]] TokenLogProbs response_log_probs(Context& context, model::Transformer& model,
                                               const train::Sequences& sequences, const char* phase,
                                               std::int64_t micro_batch, bool entropy);
/// Phase "values": the critic's value before each token of the response, (B, T).
[[nodiscard]] at::Tensor response_values(Context& context, train::Role& critic,
                                         const train::Sequences& sequences);
/// Phase "rewards": one score a sequence, (B,), read at its last token.
[[nodiscard]] at::Tensor response_scores(Context& context, train::Role& reward,
                                         const train::Sequences& sequences);

/// (B, T): `scores` at each sequence's last response token.
[[nodiscard]] at::Tensor place_at_end(const at::Tensor& scores, const at::Tensor& mask);

}  // namespace neap::rlhf
