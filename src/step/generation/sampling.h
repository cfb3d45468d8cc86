// Samples the next token of each sequence from its logits.
#pragma once

#include <algorithm>
#include <utility>

#include "spec/job/job.h"
#include "step/model/head.h"
#include "step/operations/operations.h"
#include "step/operations/own_kernels.h"

namespace neap::step {

struct SamplingOptions {
  double temperature = 1;   ///< 0: greedy
  double top_p = 1;         ///< the smallest set of tokens whose cumulative probability reaches it
  std::int64_t top_k = -1;  ///< only the most likely tokens; -1: all
  /// Log-probabilities of sampled tokens: after penalties and temperature, before top_k, top_p and
  /// min_p.
  bool log_probs = false;
  double min_p = 0;  ///< drops tokens below this fraction of the highest probability
  /// For tokens in the prompt or response: a positive logit is divided by it, a negative one
  /// multiplied.
  double repetition_penalty = 1;
  double presence_penalty = 0;   ///< subtracted from the logits of tokens in the response
  double frequency_penalty = 0;  ///< subtracted once per occurrence in the response

  [[nodiscard]] bool penalizes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

/// Inputs for the next token of each sequence, in addition to its logits.
template <class T>
struct Draw {
  T uniforms;  // (B,) float32 in [0, 1); of several steps (steps, B)
  // With penalties: the tokens seen, (B, U) int64, where the rest of a row repeats its first; and what
  // is subtracted from their logits, (B, U) float32.
  T seen, amounts;
};

template <class T>
struct Sampled {
  T tokens;     // (B,) int64; of several steps (steps, B)
  T log_probs;  // as those, wide; undefined unless requested
};

/// Greedy decoding.
[[nodiscard]] inline SamplingOptions greedy_sampling() {
  SamplingOptions options;
  options.temperature = 0;
  return options;
}
[[nodiscard]] inline SamplingOptions sampling_options(const spec::TokenSampling& t) {
  SamplingOptions options;
  options.temperature = t.temperature;
  options.top_p = t.top_p;
  options.top_k = t.top_k;
  return options;
}
/// For training prompts.
[[nodiscard]] inline SamplingOptions sampling_options(const spec::RolloutConfig& r) {
  SamplingOptions options = sampling_options(static_cast<const spec::TokenSampling&>(r));
  options.min_p = r.min_p;
  options.repetition_penalty = r.repetition_penalty;
  options.presence_penalty = r.presence_penalty;
  options.frequency_penalty = r.frequency_penalty;
  return options;
}
/// For held-out prompts.
[[nodiscard]] inline SamplingOptions sampling_options(const spec::ValidationSampling& v) {
  return v.do_sample ? sampling_options(static_cast<const spec::TokenSampling&>(v))
                     : greedy_sampling();
}

/// Number of decoding steps whose tokens are read together; `wanted` 0: the device's default.
/// Several keep a GPU busy while the host prepares the next step. Tokens after the end of a
/// sequence are wasted, so they are few. Penalties need each token on the host.
[[nodiscard]] inline std::int64_t steps_of_a_read(bool cuda, const SamplingOptions& o,
                                                  std::int64_t wanted = 0) {
  constexpr std::int64_t kOfGpu = 8;
  if (o.penalizes()) return 1;
  if (wanted > 0) return wanted;
  return cuda ? kOfGpu : 1;
}
/// Whether the host reads tokens after it has queued the next action.
[[nodiscard]] inline bool reads_late(bool cuda, const SamplingOptions& o) {
  return cuda && !o.penalizes();
}

/// Whether tokens have to be sorted by their probability, which takes memory.
[[nodiscard]] inline bool needs_order(const SamplingOptions& o) {
  return o.temperature > 0 && (o.top_k > 0 || o.top_p < 1);
}

/// logits (B, V), wide, already divided by the temperature; uniforms (B,) in [0, 1) -> (B,) int64.
template <class Ops, class T = typename Ops::Tensor>
T choose(Ops& ops, T logits, const SamplingOptions& options, const T& uniforms) {
  if (options.temperature <= 0) return ops.argmax_last(logits);
  const std::int64_t vocabulary = logits.size(1);
  const bool by_count = options.top_k > 0 && options.top_k < vocabulary;
  const bool by_mass = options.top_p < 1;
  T order;  // (B, V): the token at each rank, if tokens are sorted
  if (by_count || by_mass) {
    Sorted<T> sorted = ops.sort_descending(logits);
    logits = std::move(sorted.values);
    order = std::move(sorted.order);
  }
  const T mass = ops.softmax_last(logits);
  logits = T();
  if (options.min_p > 0) ops.drop_below_(mass, options.min_p);
  if (by_count) ops.zero_(ops.narrow(mass, 1, options.top_k, vocabulary - options.top_k));
  if (by_mass) {
    if (by_count || options.min_p > 0) ops.divide_(mass, ops.view(ops.sum_last(mass), {-1, 1}));
    ops.drop_beyond_mass_(mass, options.top_p);
  }
  ops.cumulate_last_(mass);
  // The first rank whose cumulative probability exceeds the target, which is less than the total.
  const T draws = ops.convert(uniforms, ops.dtype(mass));
  const T target = ops.multiply(ops.view(draws, {-1, 1}), ops.narrow(mass, 1, vocabulary - 1, 1));
  const T rank = ops.search_last(mass, target);  // (B, 1)
  return order.defined() ? ops.gather_last(order, ops.view(rank, {-1})) : ops.view(rank, {-1});
}

/// logits (B, V), wide, are destroyed.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> sample(Ops& ops, T logits, const SamplingOptions& options, const Draw<T>& draw) {
  if (options.penalizes())
    ops.penalize_(logits, draw.seen, draw.amounts, options.repetition_penalty);
  if (options.temperature > 0) ops.divide_(logits, options.temperature);
  const T all = options.log_probs ? logits : T();
  Sampled<T> out{choose(ops, std::move(logits), options, draw.uniforms), T()};
  if (all.defined())
    out.log_probs = reduce_logits(ops, all, out.tokens, {}, spec::Axis::kSelf).log_probs;
  return out;
}

/// By Neap's kernels. They draw from the logits that the head's product wrote. Writes to `out` if its tensors are
/// defined.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> draw_tokens(Ops& ops, const T& logits, const TokenDraw& by, bool log_probs,
                       const T& uniforms, Sampled<T> out = {}) {
  const std::int64_t rows = logits.size(0);
  if (!out.tokens.defined()) {
    out.tokens = ops.empty({rows}, Dtype::kInt64);
    if (log_probs) out.log_probs = ops.empty({rows}, Dtype::kFloat32);
  }
  const T scratch =
      ops.empty({rows, draw_parts(logits.size(1)), draw_scratch(by.in_order())}, Dtype::kInt64);
  ops.draw_into(out.tokens, out.log_probs, scratch, logits, uniforms, by);
  return out;
}

/// For Neap's kernels.
template <class T>
TokenDraw token_draw(const Weights<T>& w, const SamplingOptions& o) {
  TokenDraw by;
  by.largest = o.temperature <= 0;
  by.shape = {w.architecture.logit_softcap, logits_divisor(w, by.largest ? 1 : o.temperature)};
  if (o.top_k < w.architecture.vocab_size) by.top_k = std::max<std::int64_t>(o.top_k, 0);
  by.top_p = o.top_p;
  by.min_p = o.min_p;
  return by;
}

/// The next tokens after hidden states (B, C). Neap's kernels keep the same tokens as sample(),
/// except for rounding: they compare logits before the cap and the division, and do not round caps
/// to the logits' type. With min_p alone they draw in the order of probability, sample() in the
/// vocabulary's. Otherwise both draw the same token for a uniform number. Writes to `out` if its tensors are
/// defined.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> next_tokens(Ops& ops, const Weights<T>& w, const T& hidden,
                       const SamplingOptions& options, const Draw<T>& draw, Sampled<T> out = {}) {
  const TokenDraw by = token_draw(w, options);
  if (options.penalizes() ||
      !ops.own_draw(ops.dtype(hidden), w.architecture.vocab_size, by.in_order())) {
    const Sampled<T> drawn = sample(ops, logits(ops, w, hidden), options, draw);
    if (!out.tokens.defined()) return drawn;
    ops.copy_(out.tokens, ops.view(drawn.tokens, {-1}));
    if (drawn.log_probs.defined()) ops.copy_(out.log_probs, drawn.log_probs);
    return out;
  }
  return draw_tokens(ops, raw_logits(ops, w, hidden), by, options.log_probs, draw.uniforms,
                     std::move(out));
}

}  // namespace neap::step
