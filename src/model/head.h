// The heads over final hidden states, in chunks of rows; see transformer.h for each.
#pragma once

#include "model/network.h"
#include "model/transformer.h"

namespace neap::model::head {

[[nodiscard]] at::Tensor logits(Network& net, const at::Tensor& hidden);
[[nodiscard]] LogProbs log_probs(Network& net, const at::Tensor& hidden, const at::Tensor& rows,
                                 const at::Tensor& targets, const LogProbOptions& options);
[[nodiscard]] at::Tensor log_probs_backward(Network& net, const at::Tensor& hidden,
                                            const at::Tensor& rows, const at::Tensor& targets,
                                            const LogProbs& forward, const at::Tensor& d_log_probs,
                                            const at::Tensor& d_entropy,
                                            const LogProbOptions& options);
[[nodiscard]] Transformer::WithGrad cross_entropy(Network& net, const at::Tensor& hidden,
                                                  const at::Tensor& rows, const at::Tensor& targets,
                                                  const at::Tensor& weights,
                                                  const LogProbOptions& options);
[[nodiscard]] at::Tensor scores(Network& net, const at::Tensor& hidden, const at::Tensor& rows);
[[nodiscard]] at::Tensor scores_backward(Network& net, const at::Tensor& hidden,
                                         const at::Tensor& rows, const at::Tensor& d_scores);

}  // namespace neap::model::head
