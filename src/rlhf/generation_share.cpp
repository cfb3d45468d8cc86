#include "rlhf/generation_share.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace neap::rlhf {
namespace {

// (prompts, 1 + width): the length of each, and its tokens.
at::Tensor padded(const std::vector<train::Tokens>& prompts, std::int64_t width) {
  at::Tensor out = at::zeros({std::ssize(prompts), 1 + width}, at::dtype(at::kLong));
  auto* row = out.mutable_data_ptr<std::int64_t>();
  for (const train::Tokens& prompt : prompts) {
    *row = std::ssize(prompt);
    std::copy(prompt.begin(), prompt.end(), row + 1);
    row += 1 + width;
  }
  return out;
}

std::vector<train::Tokens> unpadded(const at::Tensor& rows) {
  std::vector<train::Tokens> out;
  const auto* row = rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows.size(0); ++i, row += rows.size(1))
    out.emplace_back(row + 1, row + 1 + *row);
  return out;
}

// Prompts of all ranks that divide the model only to generate, each rank's in turn.
AnsweredPrompts joined_prompts(const Context& context, const std::vector<train::Tokens>& mine) {
  const bridge::HostScope host;
  parallel::Communicator& together = context.groups.generating();
  const at::Tensor all = parallel::BatchSharder(together)
                             .gather(padded(mine, context.job.data.max_prompt_length), 1)
                             .contiguous();
  AnsweredPrompts out{unpadded(all), {}};
  // They are neighbours along the axis data.
  const auto rank = static_cast<std::size_t>(together.rank());
  const auto size = static_cast<std::size_t>(together.size());
  for (std::size_t i = 0; i < out.prompts.size(); ++i)
    out.places.push_back(context.sharder().global(i / size) - rank + i % size);
  return out;
}

AnsweredPrompts own_prompts(const Context& context, const std::vector<train::Tokens>& mine) {
  AnsweredPrompts out{mine, {}};
  for (std::size_t i = 0; i < mine.size(); ++i) out.places.push_back(context.sharder().global(i));
  return out;
}

}  // namespace

AnsweredPrompts prompts_to_answer(const Context& context, const std::vector<train::Tokens>& mine) {
  const AnsweredPrompts all = context.job.divides_otherwise_to_generate()
                                  ? joined_prompts(context, mine)
                                  : own_prompts(context, mine);
  const parallel::BatchSharder answering = context.answering_sharder();
  return {answering.of_padded(all.prompts), answering.of_padded(all.places)};
}

void take_own_responses(const Context& context, Experience& e, std::int64_t n,
                        std::int64_t prompts) {
  const bool joined = context.job.divides_otherwise_to_generate();
  const std::int64_t all = joined ? prompts * context.groups.generating().size() : prompts;
  gather_rows(e, context.answering_sharder(), n, all * n);
  if (!joined) return;
  const parallel::BatchSharder together(context.groups.generating());
  transform_rows(e, [&](const at::Tensor& t) { return together.pick(t, n); });
}

}  // namespace neap::rlhf
