#include "rollout/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "bridge/runtime.h"

namespace neap::rollout {
namespace {

at::Tensor on_host(const std::vector<std::int64_t>& v) {
  const bridge::HostScope host;
  return at::tensor(v, at::kLong);
}

/// Prompts with equal tokens share their prefill.
std::vector<step::SequenceStart> starts_of(const std::vector<Prompt>& prompts) {
  const auto less = [](const std::vector<std::int64_t>* a, const std::vector<std::int64_t>* b) {
    return *a < *b;
  };
  std::map<const std::vector<std::int64_t>*, std::size_t, decltype(less)> numbers(less);
  std::vector<step::SequenceStart> out;
  for (const Prompt& prompt : prompts) {
    const std::size_t number = numbers.try_emplace(&prompt.tokens, numbers.size()).first->second;
    out.push_back({number, std::ssize(prompt.tokens), prompt.max_new_tokens});
  }
  return out;
}

}  // namespace

LiveSource::LiveSource(const std::vector<Prompt>& prompts, const GenerateOptions& options,
                       const CacheSize& cache, const Decoding& decoding, step::CacheRows rows)
    : prompts_(prompts),
      options_(options),
      schedule_(value_or_throw(step::GenerationSchedule::make(
          {cache.rows, cache.tokens, options.prompt_width, options.max_new_tokens, options.prefill,
           decoding.steps, decoding.rows_in_powers},
          starts_of(prompts), std::move(rows)))),
      responses_(prompts.size()) {
  if (!options.sampling.penalizes()) return;
  for (const Prompt& prompt : prompts) seen_.emplace_back(prompt.tokens);
}

const step::GenerationAction* LiveSource::next() {
  if (stopped_) return nullptr;
  const step::GenerationAction* action = value_or_throw(schedule_.next());
  if (action != nullptr && options_.on_action) options_.on_action(*action);
  return action;
}

step::PromptBatch<at::Tensor> LiveSource::prompts(const step::PrefillPrompts& action) const {
  const std::vector<std::vector<std::int64_t>> by_prompt = action.rows_by_prompt();
  std::vector<std::int64_t> tokens, rows;
  std::size_t copies = 0;
  for (const auto& of_prompt : by_prompt) {
    const std::vector<std::int64_t>& prompt = prompt_of(of_prompt.front());
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    tokens.resize(tokens.size() + static_cast<std::size_t>(action.width) - prompt.size(),
                  options_.pad_token_id);
    copies = std::max(copies, of_prompt.size());
  }
  for (std::size_t j = 0; j < copies; ++j) {
    for (const auto& of_prompt : by_prompt)
      rows.push_back(of_prompt[std::min(j, of_prompt.size() - 1)]);
  }
  const std::int64_t n = std::ssize(by_prompt);
  return {on_host(tokens).view({n, -1}), on_host(action.lengths), on_host(rows).view({-1, n}),
          on_host(action.prompts)};
}

step::ChunkBatch<at::Tensor> LiveSource::chunk(const step::PrefillChunk& action) const {
  const std::size_t sequence = schedule_.sequence_of(action.rows.front());
  std::vector<std::int64_t> text = prompts_[sequence].tokens;
  text.insert(text.end(), responses_[sequence].tokens.begin(), responses_[sequence].tokens.end());
  const auto first = text.begin() + action.first;
  return {on_host({first, first + action.count}),
          on_host(std::vector<std::int64_t>(action.rows.size(), 0))};
}

step::DecodeRows<at::Tensor> LiveSource::decode_rows(std::int64_t rows) const {
  const auto n = static_cast<std::size_t>(rows);
  std::vector<std::int64_t> tokens(n, options_.pad_token_id), positions(n, 0), advance(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::size_t sequence = schedule_.sequence_of(row);
    if (sequence == step::GenerationSchedule::kIdle) continue;
    if (!responses_[sequence].tokens.empty()) tokens[i] = responses_[sequence].tokens.back();
    positions[i] = schedule_.position(row);
    advance[i] = 1;
  }
  return {on_host(tokens), on_host(positions), on_host(advance)};
}

/// Draws of idle rows are not used.
step::Draw<at::Tensor> LiveSource::draw(const std::vector<std::int64_t>& rows, std::int64_t steps,
                                        std::int64_t width) const {
  std::vector<float> uniforms, amounts;
  std::vector<std::int64_t> seen;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const std::int64_t row : rows) {
      const std::size_t sequence = schedule_.sequence_of(row);
      const bool idle = sequence == step::GenerationSchedule::kIdle;
      const auto place = static_cast<std::uint64_t>(idle ? 0 : schedule_.new_tokens(row) + step);
      uniforms.push_back(idle ? 0.0F : uniform(prompts_[sequence].key, place));
    }
  }
  const bridge::HostScope host;
  const auto n = std::ssize(rows);
  at::Tensor draws = at::tensor(uniforms, at::kFloat);
  if (steps > 1) draws = draws.view({steps, n});
  if (!options_.sampling.penalizes()) return {draws, {}, {}};
  for (const std::int64_t row : rows) {
    const std::size_t sequence = schedule_.sequence_of(row);
    const bool idle = sequence == step::GenerationSchedule::kIdle;
    const SeenTokens none;
    const SeenTokens& tokens = idle ? none : seen_[sequence];
    tokens.append_to(options_.sampling, static_cast<std::size_t>(width), seen, amounts);
  }
  return {draws, at::tensor(seen, at::kLong).view({n, width}),
          at::tensor(amounts, at::kFloat).view({n, width})};
}

bool LiveSource::ends(std::size_t sequence, std::int64_t token) const {
  const std::vector<std::int64_t>& ends = options_.eos_token_ids;
  return std::find(ends.begin(), ends.end(), token) != ends.end() ||
         (options_.stops && options_.stops(sequence, token));
}

std::vector<std::size_t> LiveSource::sequences(const std::vector<std::int64_t>& rows) const {
  std::vector<std::size_t> out;
  out.reserve(rows.size());
  for (const std::int64_t row : rows) out.push_back(schedule_.sequence_of(row));
  return out;
}

void LiveSource::take(const std::vector<std::size_t>& sequences,
                      const step::Sampled<at::Tensor>& next) {
  const std::int64_t* tokens = next.tokens.const_data_ptr<std::int64_t>();
  const bridge::HostScope host;
  const at::Tensor kept =
      next.log_probs.defined() ? next.log_probs.to(at::kFloat).contiguous() : at::Tensor();
  const float* log_probs = kept.defined() ? kept.const_data_ptr<float>() : nullptr;
  // Tokens of several steps are in order. Tokens after the end of a sequence are dropped.
  const auto count = static_cast<std::size_t>(next.tokens.numel());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sequence = sequences[i % sequences.size()];
    if (sequence == step::GenerationSchedule::kIdle || schedule_.has_ended(sequence)) continue;
    add_token(sequence, tokens[i], log_probs == nullptr ? nullptr : log_probs + i);
  }
  if (options_.on_progress && !options_.on_progress(schedule_.ended())) stopped_ = true;
}

void LiveSource::add_token(std::size_t sequence, std::int64_t token, const float* log_prob) {
  Response& response = responses_[sequence];
  response.tokens.push_back(token);
  if (log_prob != nullptr) response.log_probs.push_back(*log_prob);
  if (options_.sampling.penalizes()) seen_[sequence].add_to_response(token);
  response.ended = ends(sequence, token);
  if (schedule_.add_token(sequence, response.ended) && options_.on_response)
    options_.on_response(sequence, response);
}

}  // namespace neap::rollout
