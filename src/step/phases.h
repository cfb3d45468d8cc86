// What the phases of a step do between opening and closing, micro-batches included.
//
// Experience is on the host; each micro-batch is copied to the device. Results go to the host through
// the caller's sinks. ops.repeat(n, body) is a loop in a run. A plan runs only the first few rounds,
// because every micro-batch of a phase has the same shape.
//
// B sequences of W columns; R response tokens each.
#pragma once

#include <algorithm>
#include <utility>

#include "spec/recipe.h"
#include "step/losses.h"
#include "step/preference.h"
#include "step/sampling.h"
#include "step/transformer.h"

namespace neap::step {

/// Prompts with their responses as one padded batch.
template <class T>
struct Sequences {
  T tokens;   // (B, W) int64
  T columns;  // (B, R) int64: column whose output predicts the response's token
  T targets;  // (B, R) int64: that token; pad where the response is shorter
  T mask;     // (B, R) float32: 1 on the response's tokens
  T last;     // (B,) int64: column of the last token

  [[nodiscard]] std::int64_t size() const { return tokens.size(0); }
  [[nodiscard]] std::int64_t width() const { return tokens.size(1); }
};

/// Rows [first, first + count) of `t` on the device.
template <class Ops, class T = typename Ops::Tensor>
T part_on_device(Ops& ops, const T& t, std::int64_t first, std::int64_t count) {
  return t.defined() ? ops.to_device(ops.narrow(t, 0, first, count)) : T();
}
template <class Ops, class T = typename Ops::Tensor>
Sequences<T> part_on_device(Ops& ops, const Sequences<T>& s, std::int64_t first,
                            std::int64_t count) {
  return {part_on_device(ops, s.tokens, first, count), part_on_device(ops, s.columns, first, count),
          part_on_device(ops, s.targets, first, count), part_on_device(ops, s.mask, first, count),
          part_on_device(ops, s.last, first, count)};
}
template <class Ops, class T = typename Ops::Tensor>
T flat_tokens(Ops& ops, const Sequences<T>& s) {
  return ops.view(s.tokens, {-1});
}
/// Rows of the flattened (B * W) outputs that predict response tokens: (B * R,).
template <class Ops, class T = typename Ops::Tensor>
T response_rows(Ops& ops, const Sequences<T>& s) {
  const T first = ops.iota(s.size(), s.width());
  return ops.view(ops.add(s.columns, ops.view(first, {-1, 1})), {-1});
}
/// Rows of the last tokens: (B,).
template <class Ops, class T = typename Ops::Tensor>
T last_token_rows(Ops& ops, const Sequences<T>& s) {
  return ops.add(s.last, ops.iota(s.size(), s.width()));
}

/// Rows [first, first + count) of a pass over data. The first `seen` of them were in the batch before.
struct MicroBatch {
  std::int64_t first = 0, count = 0, seen = 0;
  [[nodiscard]] std::int64_t fresh() const { return count - seen; }
};
/// All `rows` in micro-batches of `size`. Where the last would be smaller it reaches back over rows
/// that were seen, so that every one has the same shape.
template <class Ops, class Visit>
void for_each_micro_batch(Ops& ops, std::int64_t rows, std::int64_t size, const Visit& visit) {
  ops.repeat((rows + size - 1) / size, [&](std::int64_t i) {
    const std::int64_t at = i * size;
    const std::int64_t first = std::max<std::int64_t>(0, std::min(at, rows - size));
    visit(MicroBatch{first, std::min(size, rows), at - first});
  });
}

// ---- inference phases ----

/// log-probabilities (and entropies) of the responses. sink(micro, log_probs, entropy) gets host
/// tensors (fresh, R); entropy is undefined unless requested.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void log_prob_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                    const LogProbOptions& options, const Sink& sink) {
  for_each_micro_batch(ops, all.size(), micro_size, [&](const MicroBatch& micro) {
    const Sequences<T> s = part_on_device(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, flat_tokens(ops, s), s.width());
    const LogProbs<T> out =
        log_probs(ops, w, hidden, response_rows(ops, s), ops.view(s.targets, {-1}), options);
    const auto fresh = [&](const T& t) {
      if (!t.defined()) return T();
      return ops.to_host(ops.narrow(ops.view(t, {micro.count, -1}), 0, micro.seen, micro.fresh()));
    };
    sink(micro, fresh(out.log_probs), fresh(out.entropy));
  });
}

/// Scores of every response token (fresh, R), or of the last token (fresh,), as host tensors.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void score_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                 bool every_token, const Sink& sink) {
  for_each_micro_batch(ops, all.size(), micro_size, [&](const MicroBatch& micro) {
    const Sequences<T> s = part_on_device(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, flat_tokens(ops, s), s.width());
    const T rows = every_token ? response_rows(ops, s) : last_token_rows(ops, s);
    T out = scores(ops, w, hidden, rows);
    if (every_token) out = ops.view(out, {micro.count, -1});
    sink(micro, ops.to_host(ops.narrow(out, 0, micro.seen, micro.fresh())));
  });
}

// ---- training phases ----

/// What one block takes of a training pass, for plans that price its tensors: forward and backward
/// of the first block over (B * W) tokens; `hidden` and the gradient are (B * W, C). between() runs
/// while the block's tensors are kept.
template <class Ops, class Between, class T = typename Ops::Tensor>
void train_one_block(Ops& ops, const Weights<T>& w, const T& tokens, std::int64_t width,
                     const T& hidden, const T& gradient, const spec::BlockRetention& retention,
                     const Between& between) {
  const Rows<T> rows = rows_of_batch(ops, w, tokens, width);
  SavedBlock<T> saved;
  saved.retention = retention;
  (void)block_forward(ops, w.architecture, w.blocks[0], hidden, rows, saved);
  between();
  (void)block_backward(ops, w.architecture, w.blocks[0], std::move(saved), gradient, rows);
}

/// Host tensors (B, R) that the updates of PPO and GRPO read; ref_log_probs, values and
/// rollout_weights, which the policy's loss is weighted with, may be undefined.
template <class T>
struct Experience {
  Sequences<T> sequences;
  T old_log_probs, ref_log_probs, values, advantages, returns, rollout_weights;
};

/// Runs micro(first, count) for every micro-batch of every mini-batch and epoch of a rank.
/// optimizer: begin(update, first row) before the first micro-batch of a mini-batch, finish(update)
/// after the last.
template <class Ops, class Optimizer, class Micro>
void update_phase(Ops& ops, const spec::UpdateShape& shape, Optimizer& optimizer,
                  const Micro& micro) {
  ops.repeat(shape.updates(), [&](std::int64_t update) {
    const std::int64_t first = update * shape.mini_batch % shape.rows;
    optimizer.begin(update, first);
    ops.repeat(shape.mini_batch / shape.micro_batch,
               [&](std::int64_t i) { micro(first + i * shape.micro_batch, shape.micro_batch); });
    optimizer.finish(update);
  });
}

/// What the actor's loss is made of.
struct PolicyObjective {
  const spec::ActorConfig& config;
  LossScale scale;
};
struct PolicyMicroStatistics {
  PolicyStatistics policy;
  double kl_loss = 0;  ///< share of the mini-batch's
  double tokens = 0;   ///< masked
};
/// Forward, loss and backward of the actor for sequences [first, first + count).
template <class Ops, class T = typename Ops::Tensor>
PolicyMicroStatistics policy_micro_batch(Ops& ops, const Weights<T>& w, const Experience<T>& e,
                                         std::int64_t first, std::int64_t count,
                                         const PolicyObjective& objective,
                                         const LogProbOptions& options,
                                         const spec::Checkpointing& keep) {
  const spec::ActorConfig& config = objective.config;
  const Sequences<T> s = part_on_device(ops, e.sequences, first, count);
  Tape<T> tape = forward_train(ops, w, flat_tokens(ops, s), s.width(), keep);
  const T rows = response_rows(ops, s);
  const T targets = ops.view(s.targets, {-1});
  const LogProbs<T> out = log_probs(ops, w, tape.hidden, rows, targets, options);
  PolicyMicroStatistics statistics;
  T d_log_probs;
  T d_entropy;
  {
    const spec::LossAggregation mode = config.loss_agg_mode;
    const spec::LossAggregation policy_mode = spec::aggregation_of(config.loss_mode, mode);
    const T weights = loss_weights(ops, s.mask, mode, objective.scale);
    const T current = ops.view(out.log_probs, {count, -1});
    T policy_weights =
        policy_mode == mode ? weights : loss_weights(ops, s.mask, policy_mode, objective.scale);
    if (e.rollout_weights.defined()) {
      policy_weights =
          ops.multiply(policy_weights, part_on_device(ops, e.rollout_weights, first, count));
    }
    PolicyGradient<T> policy = policy_loss(
        ops,
        PolicyInputs<T>{part_on_device(ops, e.old_log_probs, first, count), current,
                        part_on_device(ops, e.advantages, first, count), s.mask, policy_weights},
        config);
    statistics.policy = policy.statistics;
    d_log_probs = std::move(policy.d_log_probs);
    if (config.use_kl_loss) {
      const spec::KlKind kind = config.kl_loss_type;
      const T delta = ops.subtract(current, part_on_device(ops, e.ref_log_probs, first, count));
      statistics.kl_loss = weighted_sum(ops, kl_value(ops, delta, kind.value), weights);
      const T d_kl =
          kl_slope(ops, delta, kind.straight_through ? spec::KlEstimator::kK2 : kind.value);
      ops.multiply_(d_kl, weights);
      ops.scale_(d_kl, config.kl_loss_coef);
      ops.add_(d_log_probs, d_kl);
    }
    if (options.entropy) {
      d_entropy = ops.clone(weights);
      ops.scale_(d_entropy, -config.entropy_coeff);
    }
    statistics.tokens = ops.read(ops.sum(s.mask));
  }
  T d_hidden =
      log_probs_backward(ops, w, tape.hidden, rows, targets, out, ops.view(d_log_probs, {-1}),
                         d_entropy.defined() ? ops.view(d_entropy, {-1}) : T(), options);
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return statistics;
}

struct ValueMicroStatistics {
  double loss = 0;  ///< share of the mini-batch's
  double clip_fraction = 0, mean = 0, tokens = 0;
};
/// Forward, loss and backward of the critic.
template <class Ops, class T = typename Ops::Tensor>
ValueMicroStatistics value_micro_batch(Ops& ops, const Weights<T>& w, const Experience<T>& e,
                                       std::int64_t first, std::int64_t count, double cliprange,
                                       spec::LossAggregation aggregation, const LossScale& scale,
                                       const spec::Checkpointing& keep) {
  const Sequences<T> s = part_on_device(ops, e.sequences, first, count);
  Tape<T> tape = forward_train(ops, w, flat_tokens(ops, s), s.width(), keep);
  const T rows = response_rows(ops, s);
  ValueMicroStatistics statistics;
  T d_values;
  {
    const T values = ops.view(scores(ops, w, tape.hidden, rows), {count, -1});
    const T weights = loss_weights(ops, s.mask, aggregation, scale);
    ValueGradient<T> loss =
        value_loss(ops, values, part_on_device(ops, e.returns, first, count),
                   part_on_device(ops, e.values, first, count), s.mask, weights, cliprange);
    statistics.loss = loss.loss;
    statistics.clip_fraction = loss.clip_fraction;
    statistics.tokens = ops.read(ops.sum(s.mask));
    statistics.mean = masked_mean(ops, values, s.mask, statistics.tokens);
    d_values = std::move(loss.d_values);
  }
  T d_hidden = scores_backward(ops, w, tape.hidden, rows, ops.view(d_values, {-1}));
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return statistics;
}

/// Forward, cross entropy and backward of rows [first, first + count); the loss is divided by
/// `tokens`. Returns this micro-batch's share of it.
template <class Ops, class T = typename Ops::Tensor>
double cross_entropy_micro_batch(Ops& ops, const Weights<T>& w, const Sequences<T>& all,
                                 std::int64_t first, std::int64_t count, double tokens,
                                 const spec::Checkpointing& keep) {
  const Sequences<T> s = part_on_device(ops, all, first, count);
  Tape<T> tape = forward_train(ops, w, flat_tokens(ops, s), s.width(), keep);
  const T weights = ops.clone(s.mask);
  ops.divide_(weights, tokens);
  const T flat = ops.view(weights, {-1});
  CrossEntropy<T> out = cross_entropy(ops, w, tape.hidden, response_rows(ops, s),
                                      ops.view(s.targets, {-1}), flat, {});
  const double loss = -weighted_sum(ops, out.values.log_probs, flat);
  backward(ops, w, std::move(tape), std::move(out.d_hidden));
  return loss;
}

struct PairMicroStatistics {
  double loss = 0, right = 0, margin = 0;  ///< see PairGradient
};
/// Forward, Bradley-Terry loss and backward of `pairs` (2 P sequences: all chosen, then all
/// rejected) with host `margins` (P,). The loss is divided by `all_pairs`.
template <class Ops, class T = typename Ops::Tensor>
PairMicroStatistics pair_micro_batch(Ops& ops, const Weights<T>& w, const Sequences<T>& pairs,
                                     const T& margins, double center, double all_pairs,
                                     const spec::Checkpointing& keep) {
  const Sequences<T> s = part_on_device(ops, pairs, 0, pairs.size());
  Tape<T> tape = forward_train(ops, w, flat_tokens(ops, s), s.width(), keep);
  const T last = last_token_rows(ops, s);
  PairMicroStatistics statistics;
  T d_scores;
  {
    const T both = ops.view(scores(ops, w, tape.hidden, last), {2, -1});
    PairGradient<T> loss = pairwise_loss(ops, both, ops.to_device(margins), center, all_pairs);
    statistics = {loss.loss, loss.right, loss.margin};
    d_scores = std::move(loss.d_scores);
  }
  T d_hidden = scores_backward(ops, w, tape.hidden, last, ops.view(d_scores, {-1}));
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return statistics;
}

/// A batch of pairs on the host: for each micro-batch all chosen, then all rejected.
template <class T>
struct Preferences {
  Sequences<T> sequences;
  T reference;  // (B,) float32: log-probabilities of whole responses under the reference
};
/// Forward, DPO's loss and backward of `count` pairs from pair `first` on. Sums over the pairs; the
/// loss is divided by `all_pairs`.
template <class Ops, class T = typename Ops::Tensor>
PreferenceStatistics preference_micro_batch(Ops& ops, const Weights<T>& w,
                                            const Preferences<T>& all, std::int64_t first,
                                            std::int64_t count, const spec::DpoConfig& config,
                                            double all_pairs, const spec::Checkpointing& keep) {
  const Sequences<T> s = part_on_device(ops, all.sequences, 2 * first, 2 * count);
  Tape<T> tape = forward_train(ops, w, flat_tokens(ops, s), s.width(), keep);
  const T rows = response_rows(ops, s);
  const T targets = ops.view(s.targets, {-1});
  const LogProbOptions options;
  const LogProbs<T> out = log_probs(ops, w, tape.hidden, rows, targets, options);
  PreferenceGradient<T> loss =
      preference_loss(ops, ops.view(out.log_probs, {2 * count, -1}), s.mask,
                      part_on_device(ops, all.reference, 2 * first, 2 * count), config, all_pairs);
  T d_hidden =
      log_probs_backward(ops, w, tape.hidden, rows, targets, out,
                         ops.view(std::exchange(loss.d_log_probs, {}), {-1}), T(), options);
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return loss.statistics;
}

// ---- generation ----

/// The next tokens after hidden states (B, C), on the host; `draw` is on the host, too.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> sampled_on_host(Ops& ops, const Weights<T>& w, const T& hidden,
                           const SamplingOptions& sampling, const Draw<T>& draw) {
  Draw<T> here{ops.to_device(draw.uniforms), {}, {}};
  if (sampling.penalizes()) {
    here.seen = ops.to_device(draw.seen);
    here.amounts = ops.to_device(draw.amounts);
  }
  const Sampled<T> s = sample(ops, logits(ops, w, hidden), sampling, here);
  return {ops.to_host(s.tokens), s.log_probs.defined() ? ops.to_host(s.log_probs) : T()};
}

/// What starts the sequences of some prompts; all on the host, int64.
template <class T>
struct PromptBatch {
  T tokens;   // (B', T), padded on the right
  T lengths;  // (B',)
  T slots;    // (J, B'): of the cache, for J sequences of each prompt; one may come again
  T prompts;  // (S,): the prompt of each sequence that gets a token
};

/// Prefills each prompt once, for all of its sequences, and samples their first tokens, on the host.
/// `draw` of S sequences, on the host.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> prefill_and_sample(Ops& ops, const Weights<T>& w, const PromptBatch<T>& batch,
                              const Draw<T>& draw, const KvCache<T>& cache,
                              const SamplingOptions& sampling) {
  T hidden = prefill(ops, w, ops.to_device(batch.tokens), ops.to_device(batch.lengths),
                     ops.to_device(batch.slots), cache);
  if (batch.prompts.size(0) != hidden.size(0))
    hidden = ops.take_rows(hidden, ops.to_device(batch.prompts));
  return sampled_on_host(ops, w, hidden, sampling, draw);
}

/// One decoding step: host tokens (B,) at positions (B,) -> the next tokens, on the host.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> decode_and_sample(Ops& ops, const Weights<T>& w, const T& tokens, const T& positions,
                             const Draw<T>& draw, const KvCache<T>& cache, std::int64_t key_limit,
                             const SamplingOptions& sampling) {
  const T hidden =
      decode(ops, w, ops.to_device(tokens), ops.to_device(positions), cache, key_limit);
  return sampled_on_host(ops, w, hidden, sampling, draw);
}

}  // namespace neap::step
