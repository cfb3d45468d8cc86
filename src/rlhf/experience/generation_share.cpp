#include "rlhf/experience/generation_share.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace neap::rlhf {
namespace {

// (prompts, 1 + width): the length and the tokens of each prompt.
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

// All-gathers values of responses. This rank's values start at `first`; the result has all ranks'
// values in the order of ranks.
template <class T, class Values>
std::vector<T> gather_values(parallel::Communicator& among, at::ScalarType type,
                             const std::vector<std::int64_t>& counts,
                             const std::vector<rollout::Response>& mine, const Values& values_of) {
  std::vector<T> all(
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  auto to =
      all.begin() + std::accumulate(counts.begin(), counts.begin() + among.rank(), std::int64_t{0});
  for (const rollout::Response& response : mine)
    for (const auto value : values_of(response)) *to++ = static_cast<T>(value);
  among.all_gather(at::from_blob(all.data(), {std::ssize(all)}, at::dtype(type)), counts);
  return all;
}

// Responses of every `party`-th rank, which all have the same number. Other ranks of a party have
// no responses of their own.
std::vector<rollout::Response> gather_responses(parallel::Communicator& among, std::int64_t party,
                                                const std::vector<rollout::Response>& mine) {
  const bridge::HostScope host;
  // Per response: the number of tokens, whether it has ended, and whether it has log-probabilities.
  constexpr std::size_t kNumbers = 3;
  std::vector<double> numbers;
  for (const rollout::Response& r : mine)
    numbers.insert(numbers.end(), {static_cast<double>(r.tokens.size()), r.ended ? 1.0 : 0.0,
                                   r.log_probs.empty() ? 0.0 : 1.0});
  numbers = among.join(numbers);
  const std::size_t responses = numbers.size() / kNumbers;
  const std::size_t each =
      responses * static_cast<std::size_t>(party) / static_cast<std::size_t>(among.size());
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(among.size())), log_probs = tokens;
  for (std::size_t i = 0; i < responses; ++i) {
    const std::size_t rank = i / each * static_cast<std::size_t>(party);
    const auto length = static_cast<std::int64_t>(numbers[i * kNumbers]);
    tokens[rank] += length;
    if (numbers[i * kNumbers + 2] > 0) log_probs[rank] += length;
  }
  const auto texts = gather_values<std::int32_t>(
      among, at::kInt, tokens, mine, [](const rollout::Response& r) { return r.tokens; });
  const auto probabilities = gather_values<float>(
      among, at::kFloat, log_probs, mine, [](const rollout::Response& r) { return r.log_probs; });
  std::vector<rollout::Response> out;
  auto text = texts.begin();
  auto probability = probabilities.begin();
  for (std::size_t i = 0; i < responses; ++i) {
    rollout::Response& r = out.emplace_back();
    const auto length = static_cast<std::ptrdiff_t>(numbers[i * kNumbers]);
    r.tokens.assign(text, text + length);
    r.ended = numbers[i * kNumbers + 1] > 0;
    text += length;
    if (numbers[i * kNumbers + 2] == 0) continue;
    r.log_probs.assign(probability, probability + length);
    probability += length;
  }
  return out;
}

}  // namespace

GenerationShare::GenerationShare(const Context& context, const std::vector<train::Tokens>& mine)
    : among_(context.job.has_generation_placement() ? context.groups.world()
                                                    : context.groups.context()),
      party_(context.job.has_generation_placement() ? context.groups.generating().size() : 1) {
  const parallel::BatchSharder batch = context.sharder();
  std::vector<train::Tokens> all = mine;
  const bool joined = context.job.has_generation_placement();
  if (joined) {
    const bridge::HostScope host;
    all = unpadded(batch.gather(padded(mine, context.job.data.max_prompt_length), 1));
  }
  for (std::size_t i = 0; i < mine.size(); ++i) own_.push_back(joined ? batch.global(i) : i);
  const auto count = static_cast<std::size_t>(parties());
  const auto party = static_cast<std::size_t>(among_.rank() / party_);
  for (std::size_t first = 0; first < all.size(); first += count) {
    const std::size_t i = std::min(first + party, all.size() - 1);
    prompts_.push_back(all[i]);
    places_.push_back(joined ? i : batch.global(i));
  }
}

std::vector<rollout::Response> GenerationShare::own_responses(
    std::vector<rollout::Response> answered, std::int64_t n) const {
  const auto each = static_cast<std::size_t>(n), count = static_cast<std::size_t>(parties());
  std::vector<rollout::Response> all = std::move(answered);
  const std::size_t of_party = all.size();
  if (count > 1) {
    if (among_.rank() % party_ != 0) all.clear();
    all = gather_responses(among_, party_, all);
  }
  std::vector<rollout::Response> out;
  for (const std::size_t i : own_)
    for (std::size_t k = 0; k < each; ++k)
      out.push_back(all[i % count * of_party + i / count * each + k]);
  return out;
}

}  // namespace neap::rlhf
