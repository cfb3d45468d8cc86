#include "rollout/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "base/format.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "step/phases.h"

namespace neap::rollout {
namespace {

constexpr std::size_t kIdle = ~std::size_t{0};

class Generation {
 public:
  Generation(model::Transformer& model, model::KvCache& cache, const std::vector<Prompt>& prompts,
             const GenerateOptions& options)
      : model_(model),
        cache_(cache),
        prompts_(prompts),
        options_(options),
        responses_(prompts.size()),
        slots_(static_cast<std::size_t>(std::min<std::int64_t>(
                   cache.batch(), static_cast<std::int64_t>(prompts.size()))),
               kIdle) {
    check();
    for (std::size_t i = 0; i < prompts.size(); ++i) waiting_.push_back(i);
  }

  std::vector<Response> run(const std::function<bool(std::size_t)>& on_progress) {
    const bridge::NoAutograd no_autograd;
    // Attention weighs places that it must not see with zero, and zero times the NaN that a recycled
    // page may hold is NaN.
    for (const auto* tensors : {&cache_.keys, &cache_.values}) {
      for (const at::Tensor& t : *tensors) at::Tensor(t).zero_();
    }
    while (true) {
      while (admit()) {
      }
      if (rows() == 0) break;
      decode();
      if (on_progress && !on_progress(ended_)) break;
    }
    return std::move(responses_);
  }

 private:
  void check() const {
    if (options_.prompt_width + options_.max_new_tokens > cache_.max_tokens()) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("{} prompt and {} new tokens do not fit into a cache of {} tokens",
                         options_.prompt_width, options_.max_new_tokens, cache_.max_tokens()));
    }
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const std::size_t length = prompts_[i].tokens.size();
      if (length == 0 || static_cast<std::int64_t>(length) > options_.prompt_width) {
        throw Error(ErrorCode::kInvalidArgument,
                    format("Prompt {} has {} tokens; 1 to {} are possible", i, length,
                           options_.prompt_width));
      }
    }
  }

  [[nodiscard]] static at::Tensor on_host(const std::vector<std::int64_t>& v) {
    const bridge::HostScope host;
    return at::tensor(v, at::kLong);
  }

  /// Slots up to the last one in use.
  [[nodiscard]] std::size_t rows() const {
    std::size_t n = slots_.size();
    while (n > 0 && slots_[n - 1] == kIdle) --n;
    return n;
  }

  /// Prefills waiting prompts into idle slots and samples their first tokens. False: nothing to do.
  bool admit() {
    std::vector<std::int64_t> chosen;
    for (std::size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
      if (slots_[slot] != kIdle) continue;
      slots_[slot] = waiting_.front();
      waiting_.pop_front();
      chosen.push_back(static_cast<std::int64_t>(slot));
    }
    if (chosen.empty()) return false;
    std::vector<std::int64_t> tokens, lengths;
    for (const std::int64_t slot : chosen) {
      const auto& prompt = prompts_[slots_[static_cast<std::size_t>(slot)]].tokens;
      tokens.insert(tokens.end(), prompt.begin(), prompt.end());
      tokens.resize(tokens.size() + static_cast<std::size_t>(options_.prompt_width) - prompt.size(),
                    options_.pad_token_id);
      lengths.push_back(static_cast<std::int64_t>(prompt.size()));
    }
    const step::Sampled<at::Tensor> next = step::prefill_and_sample(
        model_.ops(), model_.weights(), on_host(tokens).view({-1, options_.prompt_width}),
        on_host(lengths), on_host(chosen), uniforms(chosen), cache_, options_.sampling);
    take(chosen, next, false);
    return true;
  }

  /// One token for every slot; idle ones compute a row that nobody reads.
  void decode() {
    const std::size_t n = rows();
    std::vector<std::int64_t> tokens(n, options_.pad_token_id), positions(n, 0), active;
    std::int64_t key_limit = 1;
    for (std::size_t slot = 0; slot < n; ++slot) {
      if (slots_[slot] == kIdle) continue;
      const std::size_t sequence = slots_[slot];
      const auto& response = responses_[sequence].tokens;
      tokens[slot] = response.back();
      positions[slot] =
          static_cast<std::int64_t>(prompts_[sequence].tokens.size() + response.size()) - 1;
      key_limit = std::max(key_limit, positions[slot] + 1);
      active.push_back(static_cast<std::int64_t>(slot));
    }
    std::vector<std::int64_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    const step::Sampled<at::Tensor> next =
        step::decode_and_sample(model_.ops(), model_.weights(), on_host(tokens), on_host(positions),
                                uniforms(all), cache_, key_limit, options_.sampling);
    take(active, next, true);
  }

  /// A number in [0, 1) for the next token of each slot's sequence; 0 for idle slots.
  [[nodiscard]] at::Tensor uniforms(const std::vector<std::int64_t>& slots) const {
    std::vector<float> out;
    for (const std::int64_t slot : slots) {
      const std::size_t sequence = slots_[static_cast<std::size_t>(slot)];
      out.push_back(sequence == kIdle
                        ? 0.0F
                        : uniform(prompts_[sequence].key, responses_[sequence].tokens.size()));
    }
    const bridge::HostScope host;
    return at::tensor(out, at::kFloat);
  }

  /// Notes the next token of each of `slots`, and retires those that ended. `next` (on the host) has
  /// one token a slot of the list, or, where `by_slot`, one a slot of the cache.
  void take(const std::vector<std::int64_t>& slots, const step::Sampled<at::Tensor>& next,
            bool by_slot) {
    const std::int64_t* tokens = next.tokens.const_data_ptr<std::int64_t>();
    const bridge::HostScope host;
    const at::Tensor kept =
        next.log_probs.defined() ? next.log_probs.to(at::kFloat).contiguous() : at::Tensor();
    const float* log_probs = kept.defined() ? kept.const_data_ptr<float>() : nullptr;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<std::size_t>(slots[i]);
      const std::size_t at = by_slot ? slot : i;
      const std::int64_t token = tokens[at];
      Response& response = responses_[slots_[slot]];
      response.tokens.push_back(token);
      if (log_probs != nullptr) response.log_probs.push_back(log_probs[at]);
      response.ended = std::find(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                                 token) != options_.eos_token_ids.end();
      if (response.ended ||
          static_cast<std::int64_t>(response.tokens.size()) >= options_.max_new_tokens) {
        slots_[slot] = kIdle;
        ++ended_;
      }
    }
  }

  model::Transformer& model_;
  model::KvCache& cache_;
  const std::vector<Prompt>& prompts_;
  const GenerateOptions& options_;
  std::vector<Response> responses_;
  std::vector<std::size_t> slots_;  // sequence in each slot of the cache
  std::deque<std::size_t> waiting_;
  std::size_t ended_ = 0;
};

}  // namespace

std::vector<Response> generate(model::Transformer& model, model::KvCache& cache,
                               const std::vector<Prompt>& prompts, const GenerateOptions& options,
                               const std::function<bool(std::size_t)>& on_progress) {
  if (prompts.empty() || options.max_new_tokens <= 0) return std::vector<Response>(prompts.size());
  const at::NoGradGuard no_grad;
  return Generation(model, cache, prompts, options).run(on_progress);
}

}  // namespace neap::rollout
