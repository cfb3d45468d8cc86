// The scheduler of a generation, over any layout of the cache.
//
// generator.cpp instantiates it for the cache that Neap runs; a test for another layout.
// Threads   one at a time.   Failure   Error on prompts that do not fit; c10::Error from libtorch.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "rollout/generator.h"
#include "rollout/seen_tokens.h"
#include "step/phases.h"

namespace neap::rollout {

template <step::KvLayout<model::AtenOps> Cache>
class Generation {
 public:
  Generation(model::Transformer& model, Cache& cache, const std::vector<Prompt>& prompts,
             const GenerateOptions& options)
      : model_(model),
        cache_(cache),
        prompts_(prompts),
        options_(options),
        responses_(prompts.size()),
        rows_(static_cast<std::size_t>(
                  std::min<std::int64_t>(cache.rows(), static_cast<std::int64_t>(prompts.size()))),
              kIdle) {
    check();
    for (std::size_t i = 0; i < prompts.size(); ++i) waiting_.push_back(i);
    if (!options.sampling.penalizes()) return;
    for (const Prompt& prompt : prompts) seen_.emplace_back(prompt.tokens);
  }

  std::vector<Response> run() {
    const bridge::NoAutograd no_autograd;
    cache_.clear(model_.ops());
    while (true) {
      while (admit()) {
      }
      if (rows() == 0) break;
      compact();
      decode();
      if (options_.on_progress && !options_.on_progress(ended_)) break;
    }
    if (rows() == 0 && !waiting_.empty()) refuse(waiting_.front());
    return std::move(responses_);
  }

 private:
  static constexpr std::size_t kIdle = ~std::size_t{0};

  void check() const;
  [[noreturn]] void refuse(std::size_t sequence) const;
  [[nodiscard]] static at::Tensor on_host(const std::vector<std::int64_t>& v) {
    const bridge::HostScope host;
    return at::tensor(v, at::kLong);
  }
  /// Rows up to the last one in use.
  [[nodiscard]] std::size_t rows() const {
    std::size_t n = rows_.size();
    while (n > 0 && rows_[n - 1] == kIdle) --n;
    return n;
  }
  [[nodiscard]] std::int64_t prompt_length(std::size_t sequence) const {
    return std::ssize(prompts_[sequence].tokens);
  }
  [[nodiscard]] bool in_chunks() const { return options_.prefill.tokens < options_.prompt_width; }

  /// Sequences that start together, and the prompts that they are of.
  struct Admission {
    std::vector<std::int64_t> rows;                    // of each sequence
    std::vector<std::int64_t> prompts;                 // of each sequence: its place in `by_prompt`
    std::vector<std::vector<std::int64_t>> by_prompt;  // rows
  };
  Admission fill_rows();
  [[nodiscard]] step::PromptBatch<at::Tensor> prompt_batch(const Admission& admission) const;
  bool admit();
  void compact();
  void decode();
  /// Of the first `rows` rows; idle ones compute what is not read.
  [[nodiscard]] step::DecodeRows<at::Tensor> decode_rows(std::size_t rows) const;
  [[nodiscard]] std::int64_t position(std::size_t sequence) const {
    return prompt_length(sequence) + std::ssize(responses_[sequence].tokens) - 1;
  }
  [[nodiscard]] step::Draw<at::Tensor> draw(const std::vector<std::int64_t>& rows,
                                            std::int64_t width) const;
  void take(const std::vector<std::int64_t>& rows, const step::Sampled<at::Tensor>& next,
            bool by_row);
  [[nodiscard]] bool ends(std::size_t sequence, std::int64_t token) const;

  model::Transformer& model_;
  Cache& cache_;
  const std::vector<Prompt>& prompts_;
  const GenerateOptions& options_;
  std::vector<Response> responses_;
  std::vector<SeenTokens> seen_;   // of each sequence, with penalties
  std::vector<std::size_t> rows_;  // sequence in each row of the cache
  std::deque<std::size_t> waiting_;
  std::optional<step::DecodeRows<at::Tensor>> next_;  // none once a row starts, moves or ends
  std::size_t ended_ = 0;
};

template <step::KvLayout<model::AtenOps> Cache>
void Generation<Cache>::check() const {
  if (options_.prompt_width + options_.max_new_tokens > cache_.max_tokens()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} prompt and {} new tokens do not fit into a cache of {} tokens",
                       options_.prompt_width, options_.max_new_tokens, cache_.max_tokens()));
  }
  if (options_.prefill.prompts < 1 || options_.prefill.tokens < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                format("Prefilling {} tokens of {} prompts at a time makes no progress",
                       options_.prefill.tokens, options_.prefill.prompts));
  }
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const std::int64_t length = prompt_length(i);
    if (length == 0 || length > options_.prompt_width) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("Prompt {} has {} tokens; 1 to {} are possible", i, length,
                         options_.prompt_width));
    }
  }
}

template <step::KvLayout<model::AtenOps> Cache>
void Generation<Cache>::refuse(std::size_t sequence) const {
  throw Error(ErrorCode::kDoesNotFit,
              format("The KV cache has no room for a sequence of {} prompt and {} new tokens",
                     prompt_length(sequence), options_.max_new_tokens));
}

/// Gives idle rows to waiting sequences, as many as have few enough prompts between them and as the
/// cache has room for.
template <step::KvLayout<model::AtenOps> Cache>
typename Generation<Cache>::Admission Generation<Cache>::fill_rows() {
  Admission out;
  std::map<std::vector<std::int64_t>, std::int64_t> known;  // prompts by tokens
  for (std::size_t row = 0; row < rows_.size() && !waiting_.empty(); ++row) {
    if (rows_[row] != kIdle) continue;
    const std::size_t sequence = waiting_.front();
    const auto [it, is_new] =
        known.try_emplace(prompts_[sequence].tokens, std::ssize(out.by_prompt));
    if (is_new && std::ssize(out.by_prompt) == options_.prefill.prompts) break;
    const auto at = static_cast<std::int64_t>(row);
    if (!cache_.start(at, prompt_length(sequence) + options_.max_new_tokens)) break;
    if (is_new) out.by_prompt.emplace_back();
    waiting_.pop_front();
    rows_[row] = sequence;
    out.rows.push_back(at);
    out.prompts.push_back(it->second);
    out.by_prompt[static_cast<std::size_t>(it->second)].push_back(at);
  }
  return out;
}

template <step::KvLayout<model::AtenOps> Cache>
step::PromptBatch<at::Tensor> Generation<Cache>::prompt_batch(const Admission& admission) const {
  std::vector<std::int64_t> tokens, lengths, rows;
  std::size_t copies = 0;
  for (const auto& of_prompt : admission.by_prompt) {
    const auto first = static_cast<std::size_t>(of_prompt.front());
    const auto& prompt = prompts_[rows_[first]].tokens;
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    tokens.resize(tokens.size() + static_cast<std::size_t>(options_.prompt_width) - prompt.size(),
                  options_.pad_token_id);
    lengths.push_back(std::ssize(prompt));
    copies = std::max(copies, of_prompt.size());
  }
  for (std::size_t j = 0; j < copies; ++j) {
    for (const auto& of_prompt : admission.by_prompt)
      rows.push_back(of_prompt[std::min(j, of_prompt.size() - 1)]);
  }
  const std::int64_t prompts = std::ssize(lengths);
  return {on_host(tokens).view({prompts, -1}), on_host(lengths), on_host(rows).view({-1, prompts}),
          on_host(admission.prompts)};
}

/// Prefills waiting prompts into idle rows and samples their first tokens. False: nothing to do.
template <step::KvLayout<model::AtenOps> Cache>
bool Generation<Cache>::admit() {
  const Admission admission = fill_rows();
  if (admission.rows.empty()) return false;
  next_.reset();
  const step::Draw<at::Tensor> first = draw(admission.rows, options_.prompt_width);
  step::Sampled<at::Tensor> next;
  if (in_chunks()) {
    const auto sequence = rows_[static_cast<std::size_t>(admission.rows.front())];
    const step::LongPrompt<at::Tensor> prompt{on_host(prompts_[sequence].tokens), admission.rows,
                                              on_host(admission.prompts), options_.prefill.tokens};
    next = step::prefill_in_chunks_and_sample(model_.ops(), model_.weights(), prompt, first, cache_,
                                              options_.sampling);
  } else {
    next = step::prefill_and_sample(model_.ops(), model_.weights(), prompt_batch(admission), first,
                                    cache_, options_.sampling);
  }
  take(admission.rows, next, false);
  return true;
}

/// Moves sequences from the last rows to idle ones where at least half of the rows would be
/// idle.
template <step::KvLayout<model::AtenOps> Cache>
void Generation<Cache>::compact() {
  const std::size_t busy =
      rows_.size() - static_cast<std::size_t>(std::count(rows_.begin(), rows_.end(), kIdle));
  if (!waiting_.empty() || rows() < 2 * busy) return;
  next_.reset();
  const bridge::HostScope scratch;
  std::size_t idle = 0;
  for (std::size_t from = rows(); from-- > busy;) {
    if (rows_[from] == kIdle) continue;
    while (rows_[idle] != kIdle) ++idle;
    const std::size_t sequence = rows_[from];
    cache_.move(model_.ops(), static_cast<std::int64_t>(from), static_cast<std::int64_t>(idle),
                prompt_length(sequence) + std::ssize(responses_[sequence].tokens));
    rows_[idle] = std::exchange(rows_[from], kIdle);
  }
}

template <step::KvLayout<model::AtenOps> Cache>
step::DecodeRows<at::Tensor> Generation<Cache>::decode_rows(std::size_t rows) const {
  std::vector<std::int64_t> tokens(rows, options_.pad_token_id), positions(rows, 0),
      advance(rows, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    if (rows_[row] == kIdle) continue;
    tokens[row] = responses_[rows_[row]].tokens.back();
    positions[row] = position(rows_[row]);
    advance[row] = 1;
  }
  return step::decode_rows(model_.ops(), on_host(tokens), on_host(positions), on_host(advance));
}

/// One token for every row.
template <step::KvLayout<model::AtenOps> Cache>
void Generation<Cache>::decode() {
  const std::size_t n = rows();
  std::vector<std::int64_t> active, all(n);
  std::iota(all.begin(), all.end(), 0);
  std::int64_t key_limit = 1;
  for (std::size_t row = 0; row < n; ++row) {
    if (rows_[row] == kIdle) continue;
    key_limit = std::max(key_limit, position(rows_[row]) + 1);
    active.push_back(static_cast<std::int64_t>(row));
  }
  if (!next_) next_ = decode_rows(n);
  const step::Sampled<at::Tensor> next =
      step::decode_and_sample(model_.ops(), model_.weights(), *next_, draw(all, key_limit), cache_,
                              key_limit, options_.sampling);
  take(active, next, true);
}

/// For the next token of each row's sequence; idle rows draw what is not read. `width`: of what
/// penalties need, at least the tokens of the longest sequence.
template <step::KvLayout<model::AtenOps> Cache>
step::Draw<at::Tensor> Generation<Cache>::draw(const std::vector<std::int64_t>& rows,
                                               std::int64_t width) const {
  std::vector<float> uniforms, amounts;
  std::vector<std::int64_t> seen;
  for (const std::int64_t row : rows) {
    const std::size_t sequence = rows_[static_cast<std::size_t>(row)];
    const bool idle = sequence == kIdle;
    uniforms.push_back(idle ? 0.0F
                            : uniform(prompts_[sequence].key, responses_[sequence].tokens.size()));
    if (!options_.sampling.penalizes()) continue;
    const SeenTokens none;
    const SeenTokens& tokens = idle ? none : seen_[sequence];
    tokens.append_to(options_.sampling, static_cast<std::size_t>(width), seen, amounts);
  }
  const bridge::HostScope host;
  const auto n = std::ssize(rows);
  if (!options_.sampling.penalizes()) return {at::tensor(uniforms, at::kFloat), {}, {}};
  return {at::tensor(uniforms, at::kFloat), at::tensor(seen, at::kLong).view({n, width}),
          at::tensor(amounts, at::kFloat).view({n, width})};
}

template <step::KvLayout<model::AtenOps> Cache>
bool Generation<Cache>::ends(std::size_t sequence, std::int64_t token) const {
  const std::vector<std::int64_t>& ends = options_.eos_token_ids;
  return std::find(ends.begin(), ends.end(), token) != ends.end() ||
         (options_.stops && options_.stops(sequence, token));
}

/// Notes the next token of each of `rows`, and retires those that ended. `next` (on the host) has one
/// token a row of the list, or, where `by_row`, one a row of the cache.
template <step::KvLayout<model::AtenOps> Cache>
void Generation<Cache>::take(const std::vector<std::int64_t>& rows,
                             const step::Sampled<at::Tensor>& next, bool by_row) {
  const std::int64_t* tokens = next.tokens.const_data_ptr<std::int64_t>();
  const bridge::HostScope host;
  const at::Tensor kept =
      next.log_probs.defined() ? next.log_probs.to(at::kFloat).contiguous() : at::Tensor();
  const float* log_probs = kept.defined() ? kept.const_data_ptr<float>() : nullptr;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::size_t>(rows[i]);
    const std::size_t at = by_row ? row : i;
    const std::size_t sequence = rows_[row];
    Response& response = responses_[sequence];
    response.tokens.push_back(tokens[at]);
    if (log_probs != nullptr) response.log_probs.push_back(log_probs[at]);
    if (options_.sampling.penalizes()) seen_[sequence].add_to_response(tokens[at]);
    response.ended = ends(sequence, tokens[at]);
    if (!response.ended && std::ssize(response.tokens) < options_.max_new_tokens) continue;
    rows_[row] = kIdle;
    next_.reset();
    cache_.end(rows[i]);
    ++ended_;
    if (options_.on_response) options_.on_response(sequence, response);
  }
}

}  // namespace neap::rollout
