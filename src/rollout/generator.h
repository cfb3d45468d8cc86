// Generation with a KV cache in an arena region.
//
// step/generation/generation_schedule.h decides which sequences start, move and are decoded. A sequence's
// tokens depend only on its prompt and key, and not on the other rows.
//
// Threads   one at a time.
// Failure   Error for prompts that do not fit; c10::Error from libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/transformer.h"
#include "step/generation/generation_schedule.h"
#include "step/generation/sampling.h"

namespace neap::rollout {

struct Prompt {
  std::vector<std::int64_t> tokens;  ///< at least one
  std::uint64_t key = 0;             ///< key of its random stream
  std::int64_t max_new_tokens = 0;   ///< 0: those of GenerateOptions
};

struct Response {
  std::vector<std::int64_t> tokens;
  std::vector<float> log_probs;  ///< of the tokens, if requested by the sampling options
  bool ended = false;  ///< by an end token or a stop text; false: truncated at max_new_tokens
  friend bool operator==(const Response&, const Response&) = default;
};

struct GenerateOptions {
  step::SamplingOptions sampling{};
  std::int64_t prompt_width = 0;    ///< prompts are padded to it; at least the longest prompt
  std::int64_t max_new_tokens = 0;  ///< of any prompt; with prompt_width they fit the cache
  std::vector<std::int64_t> eos_token_ids{};  ///< each ends a sequence, and is part of it
  /// Called with each token of a response; returning true ends it (StopStrings::push). Empty: no
  /// such check.
  std::function<bool(std::size_t response, std::int64_t token)> stops{};
  std::int64_t pad_token_id = 0;
  spec::PrefillShape
      prefill{};  ///< fewer tokens than prompt_width: one prompt at a time, in chunks
  std::int64_t decode_steps = 0;  ///< whose tokens are read together; 0: the device's default
  /// Bytes on the GPU for the tensors of decoding in CUDA graphs (step/generation/decode_graphs.h); undefined: no graphs.
  at::Tensor graphs{};
  /// Called whenever tokens have been read, with the number of ended responses. Returning false
  /// stops early.
  std::function<bool(std::size_t ended)> on_progress{};
  /// Called for each response when it has ended.
  std::function<void(std::size_t response, const Response&)> on_response{};
  /// Called before each action is executed.
  std::function<void(const step::GenerationAction&)> on_action{};
};

/// One response per prompt, in the order of prompts. The initial contents of the cache do not
/// matter.
[[nodiscard]] std::vector<Response> generate(ops::Transformer& model, ops::KvCache& cache,
                                             const std::vector<Prompt>& prompts,
                                             const GenerateOptions& options);
/// The same with any layout of the cache.
[[nodiscard]] std::vector<Response> generate(ops::Transformer& model, ops::AnyKvCache& cache,
                                             const std::vector<Prompt>& prompts,
                                             const GenerateOptions& options);

}  // namespace neap::rollout
