#include "train/sequences.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/format.h"
#include "base/status.h"

namespace neap::train {

Sequences make_sequences(const std::vector<Tokens>& prompts, const std::vector<Tokens>& responses,
                         const SequenceShape& shape, const std::vector<TokenMask>& masks) {
  if (prompts.size() != responses.size() || (!masks.empty() && masks.size() != prompts.size())) {
    throw Error(ErrorCode::kInternal, format("{} prompts come with {} responses and {} masks",
                                             prompts.size(), responses.size(), masks.size()));
  }
  const auto count = static_cast<std::int64_t>(prompts.size());
  const auto options = at::TensorOptions().dtype(at::kLong);
  Sequences out{at::full({count, shape.width}, shape.pad, options),
                at::zeros({count, shape.response}, options),
                at::full({count, shape.response}, shape.pad, options),
                at::zeros({count, shape.response}, at::TensorOptions().dtype(at::kFloat)),
                at::zeros({count}, options),
                at::zeros({count}, options)};
  auto* tokens = out.tokens.mutable_data_ptr<std::int64_t>();
  auto* columns = out.columns.mutable_data_ptr<std::int64_t>();
  auto* targets = out.targets.mutable_data_ptr<std::int64_t>();
  auto* mask = out.mask.mutable_data_ptr<float>();
  auto* last = out.last.mutable_data_ptr<std::int64_t>();
  auto* lengths = out.lengths.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Tokens& prompt = prompts[i];
    const Tokens& response = responses[i];
    const auto p = static_cast<std::int64_t>(prompt.size());
    const auto r = static_cast<std::int64_t>(response.size());
    if (p == 0 || r > shape.response || p + r > shape.width) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("Sequence {} has {} prompt and {} response tokens; there is room for {} "
                         "in all, {} of them the response's",
                         i, p, r, shape.width, shape.response));
    }
    std::copy(prompt.begin(), prompt.end(), tokens);
    std::copy(response.begin(), response.end(), tokens + p);
    std::copy(response.begin(), response.end(), targets);
    if (masks.empty()) {
      std::fill(mask, mask + r, 1.0F);
    } else {
      std::copy_n(masks.at(i).begin(), std::min(response.size(), masks[i].size()), mask);
    }
    for (std::int64_t t = 0; t < r; ++t) columns[t] = p - 1 + t;
    *last++ = p + r - 1;
    *lengths++ = p + r;
    tokens += shape.width;
    columns += shape.response;
    targets += shape.response;
    mask += shape.response;
  }
  return out;
}

void read_scores_before_padding(Sequences& sequences, std::int64_t pad) {
  if (pad < 0) return;
  sequences.last = sequences.last.clone();
  const at::Tensor tokens = sequences.tokens.contiguous();
  const auto* row = tokens.const_data_ptr<std::int64_t>();
  auto* last = sequences.last.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sequences.size(); ++i, row += tokens.size(1)) {
    while (last[i] > 0 && row[last[i]] == pad) --last[i];
  }
}

}  // namespace neap::train
