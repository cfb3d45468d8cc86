// Which prompts a rank answers where responses are generated, and what it has of the responses then.
//
// Rows of a batch are dealt to the ranks along the axis data. Those that divide the model only where it generates
// (spec::Job::generation_mesh) have other rows each: they answer all of these together, and keep their own. Those that
// divide sequences, and stages, have the same rows and deal them on: each answers its share, and all have all responses.
//
// Threads   one at a time.   Failure   Error, as of a communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rlhf/experience.h"

namespace neap::rlhf {

/// What this rank answers.
struct AnsweredPrompts {
  std::vector<train::Tokens> prompts;
  std::vector<std::size_t> places;  ///< of each in the whole batch
};
/// `mine`: the prompts of this rank. Ranks that answer together have as many.
[[nodiscard]] AnsweredPrompts prompts_to_answer(const Context& context,
                                                const std::vector<train::Tokens>& mine);

/// `e`, the responses to what was answered, `n` to a prompt, becomes those to the `prompts` of this rank.
void take_own_responses(const Context& context, Experience& e, std::int64_t n,
                        std::int64_t prompts);

}  // namespace neap::rlhf
