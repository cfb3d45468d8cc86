// Settings of generation: sampling, batches of prompts, and how the rollout shares the device.
//
// Threads   values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "spec/types/task.h"

namespace neap::spec {

/// The distribution that tokens are sampled from.
struct TokenSampling {
  double temperature = 1.0;
  double top_p = 1.0;
  std::int64_t top_k = -1;
};

/// Sampling settings for validation. TokenSampling is used only if do_sample is set.
struct ValidationSampling : TokenSampling {
  std::int64_t n = 1;  ///< responses per prompt
  bool do_sample = false;
};

/// The shape of a prefill pass.
struct PrefillShape {
  std::int64_t prompts = 1;  ///< prompts per pass
  std::int64_t tokens = 0;   ///< tokens per prompt; a longer prompt takes several passes alone

  [[nodiscard]] constexpr std::int64_t of_pass() const { return prompts * tokens; }
};
/// A pass takes whole prompts of up to `longest` tokens, within `budget` tokens and at most `prompts`.
/// If one prompt exceeds the budget, a pass takes `budget` tokens of it.
[[nodiscard]] constexpr PrefillShape prefill_shape(std::int64_t prompts, std::int64_t longest,
                                                   std::int64_t budget) {
  if (longest > budget) return {1, budget};
  return {std::min(prompts, budget / std::max<std::int64_t>(longest, 1)), longest};
}

/// Tokens of a page of the KV cache.
inline constexpr std::int64_t kCachePageTokens = 64;

struct RolloutConfig : TokenSampling {
  std::int64_t n = 1;                           ///< responses per prompt
  std::int64_t batch_size = 256;                ///< sequences decoded together; 0: the whole batch
  std::int64_t tensor_model_parallel_size = 0;  ///< for rollouts; 0: as in training
  std::int64_t max_num_batched_tokens = 8192;   ///< tokens per prefill pass
  bool enable_chunked_prefill = true;
  std::int64_t max_total_tokens = 0;    ///< of the KV cache, in pages; 0: every sequence has a slot
  bool calculate_log_probs = false;     ///< store log-probabilities of tokens as they are sampled
  bool automatic_total_tokens = false;  ///< a plan chooses max_total_tokens
  std::int64_t log_prob_micro_batch_size_per_gpu = 8;
  std::int64_t log_prob_max_token_len_per_gpu = 0;  ///< 0: as the actor's training
  double min_p = 0;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> stop;
  bool sample_lengths = false;  ///< sample response lengths at random, for measurements
  std::string graphs = "auto";  ///< decoding in CUDA graphs: "auto" or "off"
  Colocation colocation = Colocation::kStages;
  ValidationSampling val_kwargs;
};

}  // namespace neap::spec
