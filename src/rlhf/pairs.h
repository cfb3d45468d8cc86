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

/// The pairs with `numbers`, two sequences each: all chosen, then all rejected. Host memory.
[[nodiscard]] train::Sequences gather_pairs(const Context& context, const Rows& pairs,
                                            const std::vector<std::size_t>& numbers);
/// (P,) float32 in host memory; 0 where a row had none.
[[nodiscard]] at::Tensor margins_of(const Rows& pairs, const std::vector<std::size_t>& numbers);

}  // namespace neap::rlhf
