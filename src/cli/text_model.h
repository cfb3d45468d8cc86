// Generates text from a checkpoint: its tokenizer, its weights on a device, and a KV cache that
// grows to the size of the largest call.
//
// Threads   one at a time.
//
// Failure   neap::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bridge/device_context.h"
#include "ops/transformer.h"
#include "rollout/generator.h"
#include "spec/job/job.h"
#include "spec/model/adapter_config.h"
#include "spec/model/generation_config.h"
#include "text/tokenizer/text_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::cli {

class TextModel {
 public:
  /// Reads everything except the weights.
  explicit TextModel(spec::ModelFiles files);
  /// Reads the weights. Call it before the first generate().
  void load(const spec::DeviceConfig& device);

  [[nodiscard]] const spec::Architecture& shape() const { return shape_; }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const spec::GenerationConfig& config() const { return config_; }

  struct Sizes {
    std::int64_t batch = 1;           ///< prompts at a time
    std::int64_t prefill_tokens = 0;  ///< per prefill pass
    std::int64_t total_tokens = 0;    ///< of the KV cache, in pages; 0: each prompt has a slot
  };
  /// Generates one response per prompt. Sets the options that follow from the model and the
  /// prompts.
  [[nodiscard]] std::vector<rollout::Response> generate(const std::vector<rollout::Prompt>& prompts,
                                                        const Sizes& sizes,
                                                        rollout::GenerateOptions options);

 private:
  /// Throws if `total_tokens` (0: no pages) holds no whole text, or the kernels have no pages.
  void check_pages(const step::CacheShape& shape, std::int64_t total_tokens) const;
  [[nodiscard]] ops::AnyKvCache& cache(const step::CacheShape& shape);
  /// Memory to decode in CUDA graphs with such a cache; undefined: no graphs.
  [[nodiscard]] at::Tensor graphs(const step::CacheShape& shape,
                                  const step::SamplingOptions& sampling);

  spec::ModelFiles files_;
  spec::Architecture shape_;
  spec::GenerationConfig config_;
  text::Tokenizer tokenizer_;
  text::TextTokens text_;
  std::optional<plan::Target> target_;
  std::optional<bridge::DeviceContext> context_;
  at::TensorOptions options_;
  std::optional<ops::Transformer> transformer_;
  at::Tensor cells_;  // the largest cache so far
  ops::AnyKvCache cache_;
  at::Tensor scratch_;  // of graphs
};

}  // namespace neap::cli
