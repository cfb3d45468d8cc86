// What the phases of a step do between opening and closing, micro-batches included.
//
// Experience is on the host; each micro-batch is copied to the device. Results go to the host through
// the caller's sinks. ops.repeat(n, body) is a loop in a run. A plan runs only the first few rounds:
// every padded micro-batch of a phase has the same shape, and of packed ones it counts the largest.
//
// B sequences of W columns; R response tokens each.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "spec/recipe.h"
#include "step/batch.h"
#include "step/losses.h"
#include "step/policy_losses.h"
#include "step/preference.h"
#include "step/rollout_terms.h"
#include "step/sampling.h"

namespace neap::step {

/// The micro-batches of all sequences in an inference phase: the packed ones, or padded ones of `size`.
template <class T>
std::vector<MicroBatch> inference_cuts(const Sequences<T>& all, std::int64_t size) {
  return all.packed ? all.packed->cuts.at(0) : padded_cuts(all.size(), size);
}
/// visit(micro-batch) for each. In a plan neighbours with as many rows have one shape.
template <class Ops, class Visit>
void for_each_micro_batch(Ops& ops, const std::vector<MicroBatch>& cuts, const Visit& visit) {
  for (auto from = cuts.begin(); from != cuts.end();) {
    auto to = from;
    while (to != cuts.end() && to->count == from->count && to->aside == from->aside) ++to;
    if (from->aside) {
      const MicroBatch& micro = *from++;
      ops.aside([&] { visit(micro); });  // or not
      continue;
    }
    ops.repeat(to - from, [&](std::int64_t i) { visit(from[i]); });
    from = to;
  }
}

// ---- inference phases ----

/// Log-probabilities of the responses and what else is requested. sink(micro, values) gets LogProbs of
/// host tensors (fresh, R), without log_sum.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void log_prob_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                    const LogProbOptions& options, const Sink& sink) {
  for_each_micro_batch(ops, inference_cuts(all, micro_size), [&](const MicroBatch& micro) {
    const DeviceBatch<Ops> batch(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, batch.tokens());
    const LogProbs<T> out =
        log_probs(ops, w, hidden, batch.response_rows(), batch.targets(), options);
    const auto fresh = [&](const T& t) {
      if (!t.defined()) return T();
      return ops.to_host(ops.narrow(batch.by_sequence(t), 0, micro.seen, micro.fresh()));
    };
    LogProbs<T> values;
    values.log_probs = fresh(out.log_probs);
    values.entropy = fresh(out.entropy);
    values.right = fresh(out.right);
    sink(micro, values);
  });
}

/// Scores of every response token (fresh, R), or of the last token (fresh,), as host tensors.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void score_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                 bool every_token, const Sink& sink) {
  for_each_micro_batch(ops, inference_cuts(all, micro_size), [&](const MicroBatch& micro) {
    const DeviceBatch<Ops> batch(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, batch.tokens());
    const T rows = every_token ? batch.response_rows() : batch.last_token_rows();
    T out = scores(ops, w, hidden, rows);
    if (every_token) out = batch.by_sequence(out);
    sink(micro, ops.to_host(ops.narrow(out, 0, micro.seen, micro.fresh())));
  });
}

// ---- training phases ----

/// What one block takes of a training pass, for plans that price its tensors: forward and backward
/// of the first block over a batch of N tokens; `hidden` and the gradient are (N, C). between() runs
/// while the block's tensors are kept.
template <class Ops, class Between, class T = typename Ops::Tensor>
void train_one_block(Ops& ops, const Weights<T>& w, const BatchTokens<T>& batch, const T& hidden,
                     const T& gradient, const spec::BlockRetention& retention,
                     const Between& between) {
  const Rows<T> rows = rows_of_batch(ops, w, batch);
  SavedBlock<T> saved;
  saved.retention = retention;
  (void)block_forward(ops, w.architecture, w.blocks[0], hidden, rows, saved);
  between();
  (void)block_backward(ops, w.architecture, w.blocks[0], std::move(saved), gradient, rows);
}

/// Host tensors (B, R) that the updates of PPO and GRPO read; ref_log_probs, values and
/// rollout_weights, which the policy's loss is weighted with, and noise, by which it draws tokens, may
/// be undefined.
template <class T>
struct Experience {
  Sequences<T> sequences;
  T old_log_probs, ref_log_probs, values, advantages, returns, rollout_weights, noise;
};

/// The micro-batches of each mini-batch: the packed ones, or of equal size.
template <class T>
Cuts update_cuts(const spec::UpdateShape& shape, const Sequences<T>& all) {
  if (all.packed) return all.packed->cuts;
  Cuts out;
  for (std::int64_t first = 0; first < shape.rows; first += shape.mini_batch) {
    std::vector<MicroBatch>& cuts = out.emplace_back();
    for (std::int64_t i = 0; i < shape.mini_batch; i += shape.micro_batch)
      cuts.push_back({first + i, shape.micro_batch, 0});
  }
  return out;
}

/// Runs micro(first, count) for every micro-batch of every mini-batch and epoch of a rank.
/// optimizer: begin(update, first row) before the first micro-batch of a mini-batch, finish(update)
/// after the last.
template <class Ops, class Optimizer, class Micro>
void update_phase(Ops& ops, const spec::UpdateShape& shape, const Cuts& cuts, Optimizer& optimizer,
                  const Micro& micro) {
  ops.repeat(shape.updates(), [&](std::int64_t update) {
    const std::int64_t first = update * shape.mini_batch % shape.rows;
    optimizer.begin(update, first);
    for_each_micro_batch(ops, cuts.at(static_cast<std::size_t>(first / shape.mini_batch)),
                         [&](const MicroBatch& m) { micro(m.first, m.count); });
    optimizer.finish(update);
  });
}

/// What the actor's loss is made of.
struct PolicyObjective {
  const spec::ActorConfig& config;
  LossScale scale;
  std::optional<spec::BypassTerms> bypass{};
};
/// Of a job that was validated.
[[nodiscard]] inline PolicyObjective policy_objective(const spec::Job& job,
                                                      const LossScale& scale) {
  PolicyObjective out{job.actor, scale};
  if (job.bypasses_old_log_probs())
    out.bypass = *spec::bypass_terms(job.algorithm.rollout_correction);
  return out;
}
struct PolicyMicroStatistics {
  PolicyStatistics policy;
  double kl_loss = 0;               ///< share of the mini-batch's
  double tokens = 0;                ///< masked
  double rejected = 0, weight = 0;  ///< of bypass mode: share of tokens, mean over them
};
/// Forward, loss and backward of the actor for sequences [first, first + count).
template <class Ops, class T = typename Ops::Tensor>
PolicyMicroStatistics policy_micro_batch(Ops& ops, const Weights<T>& w, const Experience<T>& e,
                                         std::int64_t first, std::int64_t count,
                                         const PolicyObjective& objective,
                                         const LogProbOptions& options,
                                         const spec::Checkpointing& keep) {
  const spec::ActorConfig& config = objective.config;
  const DeviceBatch<Ops> batch(ops, e.sequences, first, count);
  Tape<T> tape = forward_train(ops, w, batch.tokens(), keep);
  const T rows = batch.response_rows();
  const T targets = batch.targets();
  const LogProbs<T> out = log_probs(ops, w, tape.hidden, rows, targets, options);
  PolicyMicroStatistics statistics;
  T d_log_probs;
  T d_entropy;
  {
    const spec::LossAggregation mode = config.loss_agg_mode;
    const spec::LossAggregation policy_mode = spec::aggregation_of(config.loss_mode, mode);
    const T weights = loss_weights(ops, batch.mask(), mode, objective.scale);
    const T current = batch.by_sequence(out.log_probs);
    const T old = batch.part(e.old_log_probs);
    statistics.tokens = ops.read(ops.sum(batch.mask()));
    T mask = batch.mask();
    T policy_weights = policy_mode == mode
                           ? weights
                           : loss_weights(ops, batch.mask(), policy_mode, objective.scale);
    if (objective.bypass) {
      const RolloutTerms<T> terms =
          rollout_terms(ops, current, old, batch.mask(), *objective.bypass);
      mask = terms.mask;
      ops.multiply_(weights, mask);
      statistics.rejected = 1 - masked_mean(ops, mask, batch.mask(), statistics.tokens);
      if (terms.weights.defined()) {
        statistics.weight = masked_mean(ops, terms.weights, batch.mask(), statistics.tokens);
        policy_weights = ops.multiply(policy_weights, terms.weights);
      }
    }
    if (e.rollout_weights.defined()) {
      policy_weights = ops.multiply(policy_weights, batch.part(e.rollout_weights));
    }
    const PolicyInputs<T> in{old,  current,        batch.part(e.advantages),
                             mask, policy_weights, batch.part(e.noise)};
    const bool reinforce = objective.bypass && objective.bypass->reinforce;
    PolicyGradient<T> policy = reinforce ? gpg_policy_loss(ops, in) : policy_loss(ops, in, config);
    statistics.policy = policy.statistics;
    d_log_probs = std::move(policy.d_log_probs);
    if (config.use_kl_loss) {
      const spec::KlKind kind = config.kl_loss_type;
      const T delta = ops.subtract(current, batch.part(e.ref_log_probs));
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
  }
  T d_hidden = log_probs_backward(ops, w, tape.hidden, rows, targets, out,
                                  batch.by_row(d_log_probs), batch.by_row(d_entropy), options);
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
  const DeviceBatch<Ops> batch(ops, e.sequences, first, count);
  Tape<T> tape = forward_train(ops, w, batch.tokens(), keep);
  const T rows = batch.response_rows();
  const T& mask = batch.mask();
  ValueMicroStatistics statistics;
  T d_values;
  {
    const T values = batch.by_sequence(scores(ops, w, tape.hidden, rows));
    const T weights = loss_weights(ops, mask, aggregation, scale);
    ValueGradient<T> loss = value_loss(ops, values, batch.part(e.returns), batch.part(e.values),
                                       mask, weights, cliprange);
    statistics.loss = loss.loss;
    statistics.clip_fraction = loss.clip_fraction;
    statistics.tokens = ops.read(ops.sum(mask));
    statistics.mean = masked_mean(ops, values, mask, statistics.tokens);
    d_values = std::move(loss.d_values);
  }
  T d_hidden = scores_backward(ops, w, tape.hidden, rows, batch.by_row(d_values));
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return statistics;
}

struct CrossEntropyStatistics {
  double loss = 0, accuracy = 0;  ///< of tokens
};
/// Forward, cross entropy and backward of rows [first, first + count); the loss is divided by
/// `tokens`. Returns this micro-batch's shares of it and of the accuracy.
template <class Ops, class T = typename Ops::Tensor>
CrossEntropyStatistics cross_entropy_micro_batch(Ops& ops, const Weights<T>& w,
                                                 const Sequences<T>& all, std::int64_t first,
                                                 std::int64_t count, double tokens,
                                                 const spec::Checkpointing& keep) {
  const DeviceBatch<Ops> batch(ops, all, first, count);
  Tape<T> tape = forward_train(ops, w, batch.tokens(), keep);
  const T weights = ops.clone(batch.mask());
  ops.divide_(weights, tokens);
  const T flat = batch.by_row(weights);
  LogProbOptions options;
  options.accuracy = true;
  CrossEntropy<T> out =
      cross_entropy(ops, w, tape.hidden, batch.response_rows(), batch.targets(), flat, options);
  const CrossEntropyStatistics statistics{-weighted_sum(ops, out.values.log_probs, flat),
                                          weighted_sum(ops, out.values.right, flat)};
  backward(ops, w, std::move(tape), std::move(out.d_hidden));
  return statistics;
}

struct PairMicroStatistics {
  double loss = 0, right = 0, margin = 0;  ///< see PairGradient
};
/// Forward, Bradley-Terry loss and backward of `count` pairs from pair `first` on: of each micro-batch
/// all chosen, then all rejected, with host `margins` (P,). The loss is divided by `all_pairs`.
template <class Ops, class T = typename Ops::Tensor>
PairMicroStatistics pair_micro_batch(Ops& ops, const Weights<T>& w, const Sequences<T>& pairs,
                                     const T& margins, std::int64_t first, std::int64_t count,
                                     double center, double all_pairs,
                                     const spec::Checkpointing& keep) {
  const DeviceBatch<Ops> batch(ops, pairs, 2 * first, 2 * count);
  Tape<T> tape = forward_train(ops, w, batch.tokens(), keep);
  const T last = batch.last_token_rows();
  PairMicroStatistics statistics;
  T d_scores;
  {
    const T both = ops.view(scores(ops, w, tape.hidden, last), {2, -1});
    PairGradient<T> loss =
        pairwise_loss(ops, both, part_on_device(ops, margins, first, count), center, all_pairs);
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
  const DeviceBatch<Ops> batch(ops, all.sequences, 2 * first, 2 * count);
  Tape<T> tape = forward_train(ops, w, batch.tokens(), keep);
  const T rows = batch.response_rows();
  const T targets = batch.targets();
  const LogProbOptions options;
  const LogProbs<T> out = log_probs(ops, w, tape.hidden, rows, targets, options);
  PreferenceGradient<T> loss = preference_loss(ops, batch.by_sequence(out.log_probs), batch.mask(),
                                               batch.part(all.reference), config, all_pairs);
  T d_hidden = log_probs_backward(ops, w, tape.hidden, rows, targets, out,
                                  batch.by_row(std::exchange(loss.d_log_probs, {})), T(), options);
  backward(ops, w, std::move(tape), std::move(d_hidden));
  return loss.statistics;
}

// ---- generation ----

/// The next tokens after hidden states (B, C), on the device; `draw` is on the host.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> sampled(Ops& ops, const Weights<T>& w, const T& hidden, const SamplingOptions& sampling,
                   const Draw<T>& draw) {
  Draw<T> here{ops.to_device(draw.uniforms), {}, {}};
  if (sampling.penalizes()) {
    here.seen = ops.to_device(draw.seen);
    here.amounts = ops.to_device(draw.amounts);
  }
  return sample(ops, logits(ops, w, hidden), sampling, here);
}

template <class Ops, class T = typename Ops::Tensor>
Sampled<T> on_host(Ops& ops, const Sampled<T>& s) {
  return {ops.to_host(s.tokens), s.log_probs.defined() ? ops.to_host(s.log_probs) : T()};
}

/// What starts the sequences of some prompts; all on the host, int64.
template <class T>
struct PromptBatch {
  T tokens;   // (B', T), padded on the right
  T lengths;  // (B',)
  T rows;     // (J, B'): of the cache, for J sequences of each prompt; one may come again
  T prompts;  // (S,): the prompt of each sequence that gets a token
};

/// Prefills each prompt once, for all of its sequences, and samples their first tokens, on the host.
/// `draw` of S sequences, on the host.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> prefill_and_sample(Ops& ops, const Weights<T>& w, const PromptBatch<T>& batch,
                              const Draw<T>& draw, const Cache& cache,
                              const SamplingOptions& sampling) {
  T hidden = prefill(ops, w, ops.to_device(batch.tokens), ops.to_device(batch.lengths),
                     ops.to_device(batch.rows), cache);
  if (batch.prompts.size(0) != hidden.size(0))
    hidden = ops.take_rows(hidden, ops.to_device(batch.prompts));
  return on_host(ops, sampled(ops, w, hidden, sampling, draw));
}

/// A prompt that is prefilled in parts.
template <class T>
struct LongPrompt {
  T tokens;                        // (L,) int64, on the host
  std::vector<std::int64_t> rows;  // of the sequences that start with it
  T prompts;                       // (S,) int64, on the host: 0 for each of these sequences
  std::int64_t chunk = 0;          // tokens of a pass
};

/// Its tokens [first, first + count): the last one's hidden state (1, C).
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
T prefill_part(Ops& ops, const Weights<T>& w, const LongPrompt<T>& prompt, std::int64_t first,
               std::int64_t count, const Cache& cache) {
  return prefill_chunk(ops, w, ops.to_device(ops.narrow(prompt.tokens, 0, first, count)),
                       {prompt.rows, first}, cache);
}

/// As above for one prompt, `chunk` tokens at a time: what a pass takes is bounded by them and by a
/// chunk of scores (attention.h), not by the prompt.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> prefill_in_chunks_and_sample(Ops& ops, const Weights<T>& w, const LongPrompt<T>& prompt,
                                        const Draw<T>& draw, const Cache& cache,
                                        const SamplingOptions& sampling) {
  const std::int64_t length = prompt.tokens.size(0);
  T hidden;
  for (std::int64_t first = 0; first < length; first += prompt.chunk) {
    hidden = T();
    hidden = prefill_part(ops, w, prompt, first, std::min(prompt.chunk, length - first), cache);
  }
  if (prompt.prompts.size(0) > 1) hidden = ops.take_rows(hidden, ops.to_device(prompt.prompts));
  return on_host(ops, sampled(ops, w, hidden, sampling, draw));
}

/// What the next decoding step starts from, on the device: (B,) int64 each.
template <class T>
struct DecodeRows {
  T tokens;     // the last one of each row
  T positions;  // its position
  T advance;    // 1, or 0 of an idle row: its position stays within the cache
};
template <class Ops, class T = typename Ops::Tensor>
DecodeRows<T> decode_rows(Ops& ops, const T& tokens, const T& positions, const T& advance) {
  return {ops.to_device(tokens), ops.to_device(positions), ops.to_device(advance)};
}

/// One decoding step: the next tokens (B,), on the host. `rows` are those of the step after it.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> decode_and_sample(Ops& ops, const Weights<T>& w, DecodeRows<T>& rows,
                             const Draw<T>& draw, const Cache& cache, std::int64_t key_limit,
                             const SamplingOptions& sampling) {
  const Sampled<T> next = sampled(
      ops, w, decode(ops, w, rows.tokens, rows.positions, cache, key_limit), sampling, draw);
  rows.tokens = ops.view(next.tokens, {-1});
  ops.add_(rows.positions, rows.advance);
  return on_host(ops, next);
}

}  // namespace neap::step
