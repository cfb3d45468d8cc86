// Preference data: prompts with a chosen and a rejected response.
//
// Rows        `prompt`, `chosen` and `rejected`, texts or conversations as everywhere, and a number
//             `margin` that rows may lack; or `prompt` and `ranking`, a list of responses, the best
//             first, which is a pair of every two. Without a prompt, or where a text comes with
//             whole conversations, what both responses start with is the prompt: TRL's rule.
//
// Threads     one at a time.
//
// Failure     Error with file and line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlhf/trainer.h"

namespace neap::rlhf {

/// A pair as it stands in a row.
struct PairRow {
  Json prompt, chosen, rejected;
  double margin = 0;
};
/// The pairs of a row. The prompt is taken off the responses where it stands in them.
[[nodiscard]] Result<std::vector<PairRow>> pairs_of(const Json& row, const spec::DataConfig& data);

/// P pairs in host memory.
struct Pairs {
  train::Sequences sequences;  ///< two of each pair: all chosen, then all rejected
  at::Tensor margins;          ///< (P,) float32; 0 where a row had none
};
/// The pairs with `numbers`.
[[nodiscard]] Pairs gather_pairs(const Context& context, const Rows& pairs,
                                 const std::vector<std::size_t>& numbers);
/// The same in a step: every rank calls it for its share, and rows that cannot be read are a StepFailure.
[[nodiscard]] Pairs read_pairs(const Context& context, const Rows& pairs,
                               const std::vector<std::size_t>& numbers);

}  // namespace neap::rlhf
