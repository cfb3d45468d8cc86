#include "rlhf/trainer/pairs.h"

#include <ATen/ATen.h>

#include <iterator>
#include <utility>

#include "bridge/runtime.h"

namespace neap::rlhf {

Pairs gather_pairs(const Context& context, const Rows& pairs,
                   const std::vector<std::size_t>& numbers) {
  if (numbers.empty()) return {};
  std::vector<train::Tokens> prompts, responses, again, rejected;
  std::vector<float> margins;
  for (const std::size_t number : numbers) {
    data::StoredRow row = pairs.at(number);
    prompts.push_back(row.texts.at(0));
    responses.push_back(std::move(row.texts.at(1)));
    again.push_back(std::move(row.texts.at(0)));
    rejected.push_back(std::move(row.texts.at(2)));
    margins.push_back(row.margin);
  }
  std::move(again.begin(), again.end(), std::back_inserter(prompts));
  std::move(rejected.begin(), rejected.end(), std::back_inserter(responses));
  const bridge::HostScope host;
  return {train::make_sequences(prompts, responses, sequence_shape(context)),
          at::tensor(margins, at::kFloat)};
}

Pairs read_pairs(const Context& context, const Rows& pairs,
                 const std::vector<std::size_t>& numbers) {
  Pairs out;
  run_in_step(context.ranks, [&] { out = gather_pairs(context, pairs, numbers); });
  return out;
}

}  // namespace neap::rlhf
