// Log-probabilities of every pair under DPO's reference, computed before the first step: the training
// phases then need no reference.
//
//   OUTPUT/reference_log_probs.safetensors   "log_probs", float32 (pairs, 2), chosen and rejected: of
//                                            the training rows, then of the held-out ones
// The file is written after each twentieth of the pairs. A run that was killed goes on behind the
// pairs that the file has, and a resumed run reads all of them: both go on with the same numbers. A file
// of other rows, of another reference or in another type is made anew.
//
// Tags      those of the reference, which get no pages again.
// Ranks     all call together; each computes its share, and the first reads and writes the file.
// Threads   one at a time.   Failure   Error.   Memory   8 bytes a pair, in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "rlhf/trainer.h"

namespace neap::rlhf {

inline constexpr const char* kReferenceLogProbsFile = "reference_log_probs.safetensors";

/// Sums over whole responses, (P, 2) in host memory.
struct ReferenceLogProbs {
  at::Tensor train, held_out;
};
/// Before the weights of other models are loaded.
[[nodiscard]] ReferenceLogProbs compute_reference_log_probs(Context& context);

/// Of some pairs, (2 n,): all chosen, then all rejected, as gather_pairs has them.
[[nodiscard]] at::Tensor select_pairs(const at::Tensor& log_probs,
                                      const std::vector<std::size_t>& numbers);

}  // namespace neap::rlhf
