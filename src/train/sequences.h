// Prompts with their responses as one padded batch, and where the model's outputs for the response
// are.
//
// Every batch of a job has the same shape, whatever its texts: memory then depends on the
// configuration alone, which is what the plan promises.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace neap::train {

struct SequenceShape {
  std::int64_t width = 0;     ///< columns: longest prompt + longest response
  std::int64_t response = 0;  ///< longest response
  std::int64_t pad = 0;       ///< token that fills the right side
};

struct Sequences {
  at::Tensor tokens;   // (B, width) int64
  at::Tensor columns;  // (B, response) int64: column whose output predicts the response's token
  at::Tensor targets;  // (B, response) int64: that token; pad where the response is shorter
  at::Tensor mask;     // (B, response) float32: 1 on the response's tokens
  at::Tensor last;     // (B,) int64: column of the last token

  [[nodiscard]] std::int64_t size() const { return tokens.size(0); }
  /// Sequences [first, first + count) on `device`.
  [[nodiscard]] Sequences slice(std::int64_t first, std::int64_t count, at::Device device) const;
  /// `columns` as rows of the flattened (B * width) outputs: (B * response,).
  [[nodiscard]] at::Tensor rows() const;
  /// `last` as rows of the flattened outputs: (B,).
  [[nodiscard]] at::Tensor last_rows() const;
};

/// Makes `last` the column that a scalar head is read at. As in transformers' sequence classifiers
/// that is the last token that is not `pad`, the pad_token_id of the head's model: where a model
/// pads with its end token, the token before the end. A negative `pad` leaves the last token. Host memory.
void read_scores_before_padding(Sequences& sequences, std::int64_t pad);

/// Rows [first, first + count) of a pass over data. `seen` of them, the first, were in the batch before.
struct MicroBatch {
  std::int64_t first = 0, count = 0, seen = 0;
  [[nodiscard]] std::int64_t fresh() const { return count - seen; }
};
/// All `rows` in micro batches of `size`: where the last would be smaller it reaches back over rows that were seen, so
/// that it takes the memory that the plan knows. Fewer rows than `size` make one batch of them all.
[[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t rows, std::int64_t size);

using Tokens = std::vector<std::int64_t>;
/// `prompts` and `responses` have the same count; each prompt at least one token, each pair at most
/// `shape.width`. Fails otherwise. Made in host memory by the calling thread.
[[nodiscard]] Sequences make_sequences(const std::vector<Tokens>& prompts,
                                       const std::vector<Tokens>& responses,
                                       const SequenceShape& shape);

}  // namespace neap::train
