// Preference data: prompts with a chosen and a rejected response.
//
// Rows      `prompt`, `chosen` and `rejected` (texts or conversations) and an optional number
//           `margin`. Or `prompt` and `ranking`, a list of responses with the best first, which
//           gives a pair for every two of them. Without a prompt, or if a text comes with whole
//           conversations, the common start of both responses is the prompt, as in TRL.
// Threads   one at a time.
// Failure   Error with file and line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlhf/trainer.h"

namespace neap::rlhf {

/// A pair as it occurs in a row.
struct PairRow {
  Json prompt, chosen, rejected;
  double margin = 0;
};
/// The pairs of a row. If responses contain the prompt, it is removed from them.
[[nodiscard]] Result<std::vector<PairRow>> pairs_of(const Json& row, const spec::DataConfig& data);

/// P pairs in host memory.
struct Pairs {
  train::Sequences sequences;  ///< two per pair: all chosen, then all rejected
  at::Tensor margins;          ///< (P,) float32; 0 if a row has none
};
/// The pairs with these row numbers.
[[nodiscard]] Pairs gather_pairs(const Context& context, const Rows& pairs,
                                 const std::vector<std::size_t>& numbers);
/// As gather_pairs, within a step: every rank calls it for its share, and rows that cannot be read
/// are a StepFailure.
[[nodiscard]] Pairs read_pairs(const Context& context, const Rows& pairs,
                               const std::vector<std::size_t>& numbers);

}  // namespace neap::rlhf
