// Prompts with their responses as one padded batch, and where the model's outputs for the response
// are.
//
// Every padded batch of a job has the same shape, whatever its texts: memory then depends on the
// configuration alone, which is what the plan promises. packed_batch.h does the same for micro-batches
// without padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "step/batch.h"

namespace neap::train {

struct SequenceShape {
  std::int64_t width = 0;     ///< columns: longest prompt + longest response
  std::int64_t response = 0;  ///< longest response
  std::int64_t pad = 0;       ///< token that fills the right side
};

using Sequences = step::Sequences<at::Tensor>;

/// Of tokens (B, W) int32 that end with responses, `lengths` of each in all and `responses` of them the response's: what
/// batches have besides. All tokens of responses count. Host memory.
[[nodiscard]] Sequences sequences_of(const at::Tensor& tokens,
                                     const std::vector<std::int64_t>& lengths,
                                     const std::vector<std::int64_t>& responses,
                                     const SequenceShape& shape);

/// Makes `last` the column that a scalar head is read at. As in transformers' sequence classifiers
/// that is the last token that is not `pad`, the pad_token_id of the head's model: where a model
/// pads with its end token, the token before the end. A negative `pad` leaves the last token. Host memory.
void read_scores_before_padding(Sequences& sequences, std::int64_t pad);

using Tokens = std::vector<std::int64_t>;
/// Which tokens of a response are trained on.
using TokenMask = std::vector<bool>;
/// `prompts` and `responses` have the same count; each prompt at least one token, each pair at most
/// `shape.width`. `masks`: one for each response, as long as it; none: all tokens count. Fails
/// otherwise. Made in host memory by the calling thread.
[[nodiscard]] Sequences make_sequences(const std::vector<Tokens>& prompts,
                                       const std::vector<Tokens>& responses,
                                       const SequenceShape& shape,
                                       const std::vector<TokenMask>& masks = {});

}  // namespace neap::train
