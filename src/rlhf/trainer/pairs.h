// Pairs of preference data as tensors.
//
// Threads   one at a time.
// Failure   Error with file and line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

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
