// The passes of step/ over right-padded batches (B, T), without options that only runs need.
#pragma once

#include <utility>

#include "bridge/no_autograd.h"
#include "ops/transformer.h"
#include "spec/model/checkpointing.h"
#include "step/model/head.h"
#include "step/model/transformer.h"

namespace neap::ops {

using step::LogProbOptions;
using LogProbs = step::LogProbs<at::Tensor>;

inline step::BatchTokens<at::Tensor> padded(const at::Tensor& tokens) {
  return step::of_one_length(tokens.reshape(-1), tokens.size(1));
}

/// Output of the last block, before the final norm: (B * T, C).
inline at::Tensor forward(Transformer& m, const at::Tensor& tokens) {
  const bridge::NoAutograd no_autograd;
  return step::forward(m.ops(), m.weights(), padded(tokens));
}
inline step::Tape<at::Tensor> forward_train(Transformer& m, const at::Tensor& tokens,
                                            const spec::Checkpointing& keep = {}) {
  const bridge::NoAutograd no_autograd;
  return step::forward_train(m.ops(), m.weights(), padded(tokens), keep);
}
inline void backward(Transformer& m, step::Tape<at::Tensor> tape, at::Tensor d_hidden) {
  const bridge::NoAutograd no_autograd;
  step::backward(m.ops(), m.weights(), std::move(tape), std::move(d_hidden));
}

/// Sequences go to the cache's `rows`; undefined: 0 to B - 1.
inline at::Tensor prefill(Transformer& m, const at::Tensor& tokens, const at::Tensor& lengths,
                          const KvCache& cache, const at::Tensor& rows = {}) {
  const bridge::NoAutograd no_autograd;
  const at::Tensor first = rows.defined() ? rows : m.ops().iota(tokens.size(0));
  return step::prefill(m.ops(), m.weights(),
                       step::make_rotations(m.ops(), m.architecture(), cache.max_tokens()),
                       tokens.contiguous(), lengths,
                       cache.prompts(m.ops(), first.view({1, -1}), {{}, tokens.size(1)}), cache);
}
inline at::Tensor decode(Transformer& m, const at::Tensor& tokens, const at::Tensor& positions,
                         const KvCache& cache, std::int64_t key_limit) {
  const bridge::NoAutograd no_autograd;
  return step::decode(m.ops(), m.weights(),
                      step::make_rotations(m.ops(), m.architecture(), cache.max_tokens()), tokens,
                      positions, cache, key_limit);
}

// Heads. If `rows` is undefined, all rows of `hidden` are used.
inline at::Tensor logits(Transformer& m, const at::Tensor& hidden) {
  const bridge::NoAutograd no_autograd;
  return step::logits(m.ops(), m.weights(), hidden);
}
inline LogProbs log_probs(Transformer& m, const at::Tensor& hidden, const at::Tensor& rows,
                          const at::Tensor& targets, const LogProbOptions& options = {}) {
  const bridge::NoAutograd no_autograd;
  return step::log_probs(m.ops(), m.weights(), hidden, rows, targets, options);
}
inline at::Tensor log_probs_backward(Transformer& m, const at::Tensor& hidden,
                                     const at::Tensor& rows, const at::Tensor& targets,
                                     const LogProbs& forward, const at::Tensor& d_log_probs,
                                     const at::Tensor& d_entropy = {},
                                     const LogProbOptions& options = {}) {
  const bridge::NoAutograd no_autograd;
  return step::log_probs_backward(m.ops(), m.weights(), hidden, rows, targets, forward, d_log_probs,
                                  d_entropy, options);
}
inline step::CrossEntropy<at::Tensor> cross_entropy(Transformer& m, const at::Tensor& hidden,
                                                    const at::Tensor& rows,
                                                    const at::Tensor& targets,
                                                    const at::Tensor& weights,
                                                    const LogProbOptions& options = {}) {
  const bridge::NoAutograd no_autograd;
  return step::cross_entropy(m.ops(), m.weights(), hidden, rows, targets, weights, options);
}
inline at::Tensor scores(Transformer& m, const at::Tensor& hidden, const at::Tensor& rows = {}) {
  const bridge::NoAutograd no_autograd;
  return step::scores(m.ops(), m.weights(), hidden, rows);
}
inline at::Tensor scores_backward(Transformer& m, const at::Tensor& hidden, const at::Tensor& rows,
                                  const at::Tensor& d_scores) {
  const bridge::NoAutograd no_autograd;
  return step::scores_backward(m.ops(), m.weights(), hidden, rows, d_scores);
}

}  // namespace neap::ops
