#include "rollout/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "rollout/seen_tokens.h"
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
    if (!options.sampling.penalizes()) return;
    for (const Prompt& prompt : prompts) seen_.emplace_back(prompt.tokens);
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
      compact();
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

  /// Sequences that start together, and the prompts that they are of.
  struct Admission {
    std::vector<std::int64_t> slots;                   // of each sequence
    std::vector<std::int64_t> prompts;                 // of each sequence: its place in `by_prompt`
    std::vector<std::vector<std::int64_t>> by_prompt;  // slots
  };

  /// Gives idle slots to waiting sequences, as many as have few enough prompts between them.
  Admission fill_slots() {
    Admission out;
    const std::int64_t most =
        options_.prompts_at_once > 0 ? options_.prompts_at_once : std::ssize(slots_);
    std::map<std::vector<std::int64_t>, std::int64_t> known;  // prompts by tokens
    for (std::size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
      if (slots_[slot] != kIdle) continue;
      const std::size_t sequence = waiting_.front();
      const auto [it, is_new] =
          known.try_emplace(prompts_[sequence].tokens, std::ssize(out.by_prompt));
      if (is_new && std::ssize(out.by_prompt) == most) break;
      if (is_new) out.by_prompt.emplace_back();
      waiting_.pop_front();
      slots_[slot] = sequence;
      out.slots.push_back(static_cast<std::int64_t>(slot));
      out.prompts.push_back(it->second);
      out.by_prompt[static_cast<std::size_t>(it->second)].push_back(out.slots.back());
    }
    return out;
  }

  [[nodiscard]] step::PromptBatch<at::Tensor> prompt_batch(const Admission& admission) const {
    std::vector<std::int64_t> tokens, lengths, slots;
    std::size_t copies = 0;
    for (const auto& of_prompt : admission.by_prompt) {
      const auto first = static_cast<std::size_t>(of_prompt.front());
      const auto& prompt = prompts_[slots_[first]].tokens;
      tokens.insert(tokens.end(), prompt.begin(), prompt.end());
      tokens.resize(tokens.size() + static_cast<std::size_t>(options_.prompt_width) - prompt.size(),
                    options_.pad_token_id);
      lengths.push_back(static_cast<std::int64_t>(prompt.size()));
      copies = std::max(copies, of_prompt.size());
    }
    for (std::size_t j = 0; j < copies; ++j) {
      for (const auto& of_prompt : admission.by_prompt)
        slots.push_back(of_prompt[std::min(j, of_prompt.size() - 1)]);
    }
    const std::int64_t prompts = std::ssize(lengths);
    return {on_host(tokens).view({prompts, -1}), on_host(lengths),
            on_host(slots).view({-1, prompts}), on_host(admission.prompts)};
  }

  /// Prefills waiting prompts into idle slots and samples their first tokens. False: nothing to do.
  bool admit() {
    const Admission admission = fill_slots();
    if (admission.slots.empty()) return false;
    const step::Sampled<at::Tensor> next = step::prefill_and_sample(
        model_.ops(), model_.weights(), prompt_batch(admission),
        draw(admission.slots, options_.prompt_width), cache_, options_.sampling);
    take(admission.slots, next, false);
    return true;
  }

  /// Moves sequences from the last slots to idle ones where at least half of the rows would compute
  /// for nobody.
  void compact() {
    const std::size_t busy =
        slots_.size() - static_cast<std::size_t>(std::count(slots_.begin(), slots_.end(), kIdle));
    if (!waiting_.empty() || rows() < 2 * busy) return;
    const bridge::HostScope scratch;
    std::size_t idle = 0;
    for (std::size_t from = rows(); from-- > busy;) {
      if (slots_[from] == kIdle) continue;
      while (slots_[idle] != kIdle) ++idle;
      const std::size_t sequence = slots_[from];
      const auto length = static_cast<std::int64_t>(prompts_[sequence].tokens.size() +
                                                    responses_[sequence].tokens.size());
      for (const auto* tensors : {&cache_.keys, &cache_.values}) {
        for (const at::Tensor& t : *tensors) row(t, idle, length).copy_(row(t, from, length));
      }
      slots_[idle] = std::exchange(slots_[from], kIdle);
    }
  }
  /// The first `length` places of a slot: (K, length, D).
  static at::Tensor row(const at::Tensor& cache, std::size_t slot, std::int64_t length) {
    return cache.select(0, static_cast<std::int64_t>(slot)).narrow(1, 0, length);
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
                                draw(all, key_limit), cache_, key_limit, options_.sampling);
    take(active, next, true);
  }

  /// For the next token of each slot's sequence; idle slots draw what nobody reads. `width`: of what
  /// penalties need, at least the tokens of the longest sequence.
  [[nodiscard]] step::Draw<at::Tensor> draw(const std::vector<std::int64_t>& slots,
                                            std::int64_t width) const {
    std::vector<float> uniforms, amounts;
    std::vector<std::int64_t> seen;
    for (const std::int64_t slot : slots) {
      const std::size_t sequence = slots_[static_cast<std::size_t>(slot)];
      const bool idle = sequence == kIdle;
      uniforms.push_back(
          idle ? 0.0F : uniform(prompts_[sequence].key, responses_[sequence].tokens.size()));
      if (!options_.sampling.penalizes()) continue;
      const SeenTokens none;
      const SeenTokens& tokens = idle ? none : seen_[sequence];
      tokens.append_to(options_.sampling, static_cast<std::size_t>(width), seen, amounts);
    }
    const bridge::HostScope host;
    const auto rows = std::ssize(slots);
    if (!options_.sampling.penalizes()) return {at::tensor(uniforms, at::kFloat), {}, {}};
    return {at::tensor(uniforms, at::kFloat), at::tensor(seen, at::kLong).view({rows, width}),
            at::tensor(amounts, at::kFloat).view({rows, width})};
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
      const std::size_t sequence = slots_[slot];
      if (options_.sampling.penalizes()) seen_[sequence].add_to_response(token);
      response.ended = std::find(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                                 token) != options_.eos_token_ids.end() ||
                       (options_.stops && options_.stops(sequence, token));
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
  std::vector<SeenTokens> seen_;    // of each sequence, with penalties
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
