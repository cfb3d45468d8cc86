#include "rollout/generator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

#include "base/format.h"
#include "base/status.h"
#include "train/random.h"

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

  [[nodiscard]] at::Tensor to_device(const std::vector<std::int64_t>& v) const {
    return at::tensor(v, at::kLong).to(model_.device());
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
    const at::Tensor hidden = model_.prefill(to_device(tokens).view({-1, options_.prompt_width}),
                                             to_device(lengths), cache_, to_device(chosen));
    take(chosen, hidden);
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
    model::KvCache cache = cache_.first(static_cast<std::int64_t>(n));
    const at::Tensor hidden =
        model_.decode(to_device(tokens), to_device(positions), cache, key_limit);
    take(active, active.size() == n ? hidden : hidden.index_select(0, to_device(active)));
  }

  /// Samples one token for each of `slots` from their hidden states, and retires those that ended.
  void take(const std::vector<std::int64_t>& slots, const at::Tensor& hidden) {
    std::vector<float> uniforms;
    for (const std::int64_t slot : slots) {
      const std::size_t sequence = slots_[static_cast<std::size_t>(slot)];
      uniforms.push_back(
          train::uniform(prompts_[sequence].key, responses_[sequence].tokens.size()));
    }
    const at::Tensor next = sample(model_.logits(hidden), options_.sampling,
                                   at::tensor(uniforms, at::kFloat).to(model_.device()))
                                .to(at::kCPU);
    const std::int64_t* token = next.const_data_ptr<std::int64_t>();
    for (const std::int64_t slot : slots) {
      Response& response = responses_[slots_[static_cast<std::size_t>(slot)]];
      response.tokens.push_back(*token);
      response.ended = std::find(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                                 *token) != options_.eos_token_ids.end();
      ++token;
      if (response.ended ||
          static_cast<std::int64_t>(response.tokens.size()) >= options_.max_new_tokens) {
        slots_[static_cast<std::size_t>(slot)] = kIdle;
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
