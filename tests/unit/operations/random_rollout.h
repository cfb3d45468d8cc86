// A rollout of random prompts: some responses end early, others wait for a row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/random.h"
#include "random_job.h"
#include "rollout/generator.h"
#include "rollout/stop_strings.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::testing {

class RandomRollout {
 public:
  /// Of a phase that generates, with tokens below `vocabulary`.
  RandomRollout(const spec::Job& job, const spec::Phase& phase, std::int64_t vocabulary,
                std::uint64_t seed)
      : stops_(tokenizer(), {"er", "th"}) {
    Dice dice(seed);
    const bool held_out = job.task == spec::Task::kEval;
    const std::int64_t n = phase.baseline ? 1 : held_out ? job.rollout.val_kwargs.n : job.rollout.n;
    for (std::int64_t i = 0; i < job.prompts_per_rank(); ++i) {
      std::vector<std::int64_t> tokens;
      for (std::int64_t k = dice.between(1, job.data.max_prompt_length); k > 0; --k)
        tokens.push_back(dice.between(0, vocabulary - 1));
      for (std::int64_t k = 0; k < n; ++k)
        prompts.push_back({tokens, random_key({seed, prompts.size()})});
    }
    options.sampling = phase.baseline ? step::greedy_sampling()
                       : held_out     ? step::sampling_options(job.rollout.val_kwargs)
                                      : step::sampling_options(job.rollout);
    options.sampling.log_probs = !phase.baseline && job.keeps_rollout_log_probs();
    options.prompt_width = job.data.max_prompt_length;
    options.max_new_tokens = job.data.max_response_length;
    options.prefill = job.prefill();
    options.decode_steps = dice.between(1, 5);
    for (std::int64_t token = dice.between(0, 40); token < vocabulary; token += 40)
      options.eos_token_ids.push_back(token);
    options.stops = [this](std::size_t response, std::int64_t token) {
      return stops_.push(response, token);
    };
    options.on_action = [this](const step::GenerationAction& action) { actions.push_back(action); };
  }
  RandomRollout(const RandomRollout&) = delete;
  RandomRollout& operator=(const RandomRollout&) = delete;

  std::vector<rollout::Prompt> prompts;
  rollout::GenerateOptions options;
  std::vector<step::GenerationAction> actions;  // that were executed

 private:
  static const text::Tokenizer& tokenizer() {
    static const auto kTokenizer = text::Tokenizer::from_folder(
        std::filesystem::path(NEAP_SOURCE_DIR) / "examples/reviews/model");
    return kTokenizer;
  }
  rollout::StopStrings stops_;
};

}  // namespace neap::testing
