// The actions of a generation, with prompts and random numbers that only have sizes, for a plan or
// a recorded run.
//
// Threads   one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "step/counting/counting_ops.h"
#include "step/generation/generation.h"

namespace neap::plan {

/// A step::GenerationSource. Both arguments must outlive it.
class CountedSource {
  using T = step::CountedTensor;

 public:
  CountedSource(const std::vector<step::GenerationAction>& actions,
                const step::SamplingOptions& sampling)
      : actions_(actions), sampling_(sampling) {}

  [[nodiscard]] const step::SamplingOptions& sampling() const { return sampling_; }
  [[nodiscard]] const step::GenerationAction* next();
  [[nodiscard]] step::PromptBatch<T> prompts(const step::PrefillPrompts& action) const;
  [[nodiscard]] step::ChunkBatch<T> chunk(const step::PrefillChunk& action) const;
  [[nodiscard]] step::DecodeRows<T> decode_rows(std::int64_t rows) const;
  [[nodiscard]] step::Draw<T> draw(const std::vector<std::int64_t>& rows, std::int64_t steps,
                                   std::int64_t width) const;
  [[nodiscard]] std::vector<std::size_t> sequences(const std::vector<std::int64_t>&) const {
    return {};
  }
  void take(const std::vector<std::size_t>&, const step::Sampled<T>&) const {}

 private:
  const std::vector<step::GenerationAction>& actions_;
  const step::SamplingOptions& sampling_;
  std::size_t at_ = 0;
};

}  // namespace neap::plan
