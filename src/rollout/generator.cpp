#include "rollout/generator.h"

#include <ATen/core/grad_mode.h>

#include "rollout/generation.h"

namespace neap::rollout {

std::vector<Response> generate(model::Transformer& model, model::KvCache& cache,
                               const std::vector<Prompt>& prompts, const GenerateOptions& options) {
  if (prompts.empty() || options.max_new_tokens <= 0) return std::vector<Response>(prompts.size());
  const at::NoGradGuard no_grad;
  return Generation(model, cache, prompts, options).run();
}

}  // namespace neap::rollout
