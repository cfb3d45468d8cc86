// Prompts with their responses as one padded batch, and the positions of the model's outputs for
// the responses.
//
// Every padded batch of a job has the same shape, so memory depends only on the configuration. The
// plan relies on this. packed_batch.h has micro-batches without padding.
//
// Threads   values and stateless functions.
// Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "step/model/batch.h"

namespace neap::train {

struct SequenceShape {
  std::int64_t width = 0;     ///< columns: longest prompt + longest response
  std::int64_t response = 0;  ///< longest response
  std::int64_t pad = 0;       ///< token that fills the right side
};

using Sequences = step::Sequences<at::Tensor>;

/// Derives a batch from `tokens` (B, W) int32, where each row ends with its response. `lengths` are
/// the tokens per row, and `responses` the tokens of the response. All response tokens are in the
/// mask. Host memory.
[[nodiscard]] Sequences sequences_of(const at::Tensor& tokens,
                                     const std::vector<std::int64_t>& lengths,
                                     const std::vector<std::int64_t>& responses,
                                     const SequenceShape& shape);

/// Sets the columns of each response from its first column. Columns of a sequence are distinct,
/// padding included.
void complete_columns(Sequences& sequences);

/// Sets `last` to the column where a scalar head is read: the last token that is not `pad`, the
/// pad_token_id of the head's model. This follows transformers' sequence classifiers. If a model
/// pads with its end token, it is the token before the end token. A negative `pad` leaves the last
/// token. Host memory.
void read_scores_before_padding(Sequences& sequences, std::int64_t pad);

using Tokens = std::vector<std::int64_t>;
/// Which tokens of a response are trained on.
using TokenMask = std::vector<bool>;
/// `prompts` and `responses` have the same count. Each prompt has at least one token, and each pair
/// at most `shape.width`. `masks` has one mask per response, of its length; empty: all tokens are
/// trained. Fails otherwise. The calling thread creates it in host memory.
[[nodiscard]] Sequences make_sequences(const std::vector<Tokens>& prompts,
                                       const std::vector<Tokens>& responses,
                                       const SequenceShape& shape,
                                       const std::vector<TokenMask>& masks = {});

}  // namespace neap::train
