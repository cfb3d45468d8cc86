#include "rollout/generator.h"

#include "rollout/generation.h"

namespace neap::rollout {

std::vector<Response> generate(ops::Transformer& model, ops::KvCache& cache,
                               const std::vector<Prompt>& prompts, const GenerateOptions& options) {
  return generate_in(model, cache, prompts, options);
}
std::vector<Response> generate(ops::Transformer& model, ops::AnyKvCache& any,
                               const std::vector<Prompt>& prompts, const GenerateOptions& options) {
  return std::visit([&](auto& cache) { return generate_in(model, cache, prompts, options); }, any);
}

}  // namespace neap::rollout
