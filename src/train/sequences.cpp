#include "train/sequences.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/format.h"
#include "base/status.h"

namespace neap::train {

void complete_columns(Sequences& sequences) {
  const std::int64_t width = sequences.tokens.size(1), response = sequences.columns.size(1);
  auto* columns = sequences.columns.mutable_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < sequences.columns.size(0); ++i, columns += response)
    for (std::int64_t r = 1; r < response; ++r)
      columns[r] = static_cast<std::int32_t>((columns[0] + r) % width);
}

Sequences sequences_of(const at::Tensor& tokens, const std::vector<std::int64_t>& lengths,
                       const std::vector<std::int64_t>& responses, const SequenceShape& shape) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const auto places = at::TensorOptions().dtype(at::kInt), numbers = places.dtype(at::kLong);
  Sequences out{tokens,
                at::zeros({count, shape.response}, places),
                at::full({count, shape.response}, shape.pad, places),
                at::zeros({count, shape.response}, at::TensorOptions().dtype(at::kFloat)),
                at::zeros({count}, numbers),
                at::tensor(lengths, numbers)};
  const at::Tensor rows = tokens.contiguous();
  const auto* row = rows.const_data_ptr<std::int32_t>();
  auto* columns = out.columns.mutable_data_ptr<std::int32_t>();
  auto* targets = out.targets.mutable_data_ptr<std::int32_t>();
  auto* mask = out.mask.mutable_data_ptr<float>();
  auto* last = out.last.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t response = responses[i], prompt = lengths[i] - response;
    std::copy_n(row + prompt, response, targets);
    std::fill_n(mask, response, 1.0F);
    *columns = static_cast<std::int32_t>(prompt - 1);
    *last++ = lengths[i] - 1;
    row += shape.width;
    columns += shape.response;
    targets += shape.response;
    mask += shape.response;
  }
  complete_columns(out);
  return out;
}

Sequences make_sequences(const std::vector<Tokens>& prompts, const std::vector<Tokens>& responses,
                         const SequenceShape& shape, const std::vector<TokenMask>& masks) {
  if (prompts.size() != responses.size() || (!masks.empty() && masks.size() != prompts.size())) {
    throw Error(ErrorCode::kInternal, format("{} prompts come with {} responses and {} masks",
                                             prompts.size(), responses.size(), masks.size()));
  }
  const at::Tensor tokens =
      at::full({std::ssize(prompts), shape.width}, shape.pad, at::dtype(at::kInt));
  auto* row = tokens.mutable_data_ptr<std::int32_t>();
  std::vector<std::int64_t> lengths, of_responses;
  for (std::size_t i = 0; i < prompts.size(); ++i, row += shape.width) {
    const auto p = std::ssize(prompts[i]), r = std::ssize(responses[i]);
    if (p == 0 || r > shape.response || p + r > shape.width) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("Sequence {} has {} prompt and {} response tokens; there is room for {} "
                         "in all, {} of them the response's",
                         i, p, r, shape.width, shape.response));
    }
    std::copy(prompts[i].begin(), prompts[i].end(), row);
    std::copy(responses[i].begin(), responses[i].end(), row + p);
    lengths.push_back(p + r);
    of_responses.push_back(r);
  }
  Sequences out = sequences_of(tokens, lengths, of_responses, shape);
  for (std::size_t i = 0; i < masks.size(); ++i) {
    float* mask =
        out.mask.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * shape.response;
    std::fill_n(mask, shape.response, 0.0F);
    std::copy_n(masks[i].begin(), std::min(responses[i].size(), masks[i].size()), mask);
  }
  return out;
}

void read_scores_before_padding(Sequences& sequences, std::int64_t pad) {
  if (pad < 0) return;
  sequences.last = sequences.last.clone();
  const at::Tensor tokens = sequences.tokens.contiguous();
  const auto* row = tokens.const_data_ptr<std::int32_t>();
  auto* last = sequences.last.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sequences.size(); ++i, row += tokens.size(1)) {
    while (last[i] > 0 && row[last[i]] == pad) --last[i];
  }
}

}  // namespace neap::train
