// Log-probabilities of every pair under DPO's reference, computed before the first step. Training
// phases then need no reference.
//
//   OUTPUT/reference_log_probs.safetensors   "log_probs", float32 (pairs, 2), chosen and rejected:
//                                            the training rows, then the held-out rows
//
// The file is written after every twentieth of the pairs. A run that was killed continues after the
// pairs in the file, and a resumed run reads all of them. The values are the same in both cases. A
// file for other rows, another reference or another type is replaced.
//
// Tags      those of the reference, which get no pages afterwards.
// Ranks     all call it together; each computes its share, and the first reads and writes the file.
// Threads   one at a time.
// Failure   Error.
// Memory    8 bytes per pair, in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

inline constexpr const char* kReferenceLogProbsFile = "reference_log_probs.safetensors";

/// Sums over whole responses, (P, 2) in host memory.
struct ReferenceLogProbs {
  at::Tensor train, held_out;
};
/// Call it before loading the weights of other models.
[[nodiscard]] ReferenceLogProbs compute_reference_log_probs(Context& context);

/// The values of some pairs, (2 n,): all chosen, then all rejected, in the order of gather_pairs.
[[nodiscard]] at::Tensor select_pairs(const at::Tensor& log_probs,
                                      const std::vector<std::size_t>& numbers);

}  // namespace neap::rlhf
