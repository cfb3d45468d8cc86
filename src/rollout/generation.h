// The data of a generation: prompts, random numbers and responses for the actions of a schedule.
//
// Threads   one at a time.
// Failure   Error for prompts that do not fit; c10::Error from libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bridge/no_autograd.h"
#include "bridge/step_graphs.h"
#include "rollout/generator.h"
#include "rollout/seen_tokens.h"
#include "step/generation/generation.h"

namespace neap::rollout {

/// A step::GenerationSource with real tensors.
class LiveSource {
  using T = at::Tensor;

 public:
  /// A source for `model`. `prompts`, `options` and `cache` outlive it.
  template <step::KvLayout<ops::AtenOps> Cache>
  LiveSource(const ops::Transformer& model, Cache& cache, const std::vector<Prompt>& prompts,
             const GenerateOptions& options)
      : LiveSource(
            prompts, options, {cache.rows(), cache.max_tokens()},
            {step::steps_of_a_read(model.device().is_cuda(), options.sampling,
                                   options.decode_steps),
             model.device().is_cuda()},
            {[&cache](std::int64_t row, const step::RowStart& sequence) {
               return cache.start(row, sequence);
             },
             [&cache](std::int64_t row, std::int64_t tokens) { return cache.grow(row, tokens); }}) {
  }

  /// One response per prompt, in the order of prompts.
  [[nodiscard]] std::vector<Response> take_responses() { return std::move(responses_); }

  // ---- step::GenerationSource ----
  [[nodiscard]] const step::SamplingOptions& sampling() const { return options_.sampling; }
  [[nodiscard]] const step::GenerationAction* next();
  [[nodiscard]] step::PromptBatch<T> prompts(const step::PrefillPrompts& action) const;
  [[nodiscard]] step::ChunkBatch<T> chunk(const step::PrefillChunk& action) const;
  [[nodiscard]] step::DecodeRows<T> decode_rows(std::int64_t rows) const;
  [[nodiscard]] step::Draw<T> draw(const std::vector<std::int64_t>& rows, std::int64_t steps,
                                   std::int64_t width) const;
  [[nodiscard]] std::vector<std::size_t> sequences(const std::vector<std::int64_t>& rows) const;
  void take(const std::vector<std::size_t>& sequences, const step::Sampled<T>& next);

 private:
  struct CacheSize {
    std::int64_t rows = 0, tokens = 0;
  };
  struct Decoding {
    std::int64_t steps = 1;
    bool rows_in_powers = false;
  };
  LiveSource(const std::vector<Prompt>& prompts, const GenerateOptions& options,
             const CacheSize& cache, const Decoding& decoding, step::CacheRows rows);

  [[nodiscard]] const std::vector<std::int64_t>& prompt_of(std::int64_t row) const {
    return prompts_[schedule_.sequence_of(row)].tokens;
  }
  [[nodiscard]] bool ends(std::size_t sequence, std::int64_t token) const;
  void add_token(std::size_t sequence, std::int64_t token, const float* log_prob);

  const std::vector<Prompt>& prompts_;
  const GenerateOptions& options_;
  step::GenerationSchedule schedule_;
  std::vector<Response> responses_;
  std::vector<SeenTokens> seen_;  // per sequence, if penalties are used
  bool stopped_ = false;          // by on_progress
};

/// While it exists, a model decodes in graphs, if the options have memory for them.
class GraphScope {
 public:
  GraphScope(ops::Transformer& model, const GenerateOptions& options) : ops_(model.ops()) {
    if (options.graphs.defined()) graphs_ = bridge::StepGraphs::make(options.graphs);
    ops_.set_graphs(graphs_.get());
  }
  ~GraphScope() { ops_.set_graphs(nullptr); }
  GraphScope(const GraphScope&) = delete;
  GraphScope& operator=(const GraphScope&) = delete;

 private:
  ops::AtenOps& ops_;
  std::unique_ptr<bridge::StepGraphs> graphs_;
};

/// As generate(), with any layout of the cache.
template <step::KvLayout<ops::AtenOps> Cache>
std::vector<Response> generate_in(ops::Transformer& model, Cache& cache,
                                  const std::vector<Prompt>& prompts,
                                  const GenerateOptions& options) {
  const bridge::NoAutograd no_autograd;
  LiveSource source(model, cache, prompts, options);
  const GraphScope graphs(model, options);
  step::run_generation(model.ops(), model.weights(), cache, source);
  return source.take_responses();
}

}  // namespace neap::rollout
