// One micro-batch of a training phase: forward to the last block's output, a loss that computes the
// output's gradient, and the backward. Training bodies differ only in their loss.
//
// An objective is the loss of a body with its settings. Its d_hidden(ops, weights, experience, batch,
// hidden, numbers) returns the gradient of `hidden`. It adds to the gradients of the head, and sets
// the numbers (loss_numbers.h) for the metrics. kSequencesOfRow is 2 if a row is a pair.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/recipe/recipe.h"
#include "step/model/batch.h"
#include "step/model/tied_rows.h"
#include "step/training/losses.h"
#include "step/training/policy_losses.h"
#include "step/training/preference.h"
#include "step/training/rollout_terms.h"

namespace neap::step {

/// The actor's loss of PPO and GRPO. Reads advantages and, depending on the configuration,
/// old_log_probs, ref_log_probs, rollout_weights and noise.
struct PolicyObjective {
  const spec::ActorConfig& config;
  LossScale scale;
  std::optional<spec::BypassTerms> bypass{};
  bool old_is_current =
      false;  ///< the old log-probabilities are the current ones, without a gradient
  LogProbOptions options{};
  static constexpr std::int64_t kSequencesOfRow = 1;

  /// For a job that was validated.
  [[nodiscard]] static PolicyObjective of(const spec::Job& job, const LossScale& scale) {
    PolicyObjective out{job.actor, scale};
    out.options.temperature = job.log_prob_temperature();
    out.old_is_current = job.old_log_probs_are_current();
    out.options.entropy = out.old_is_current || out.in_loss();
    if (out.options.entropy && !out.in_loss()) out.options.parts = kPartsWithEntropy;
    if (job.bypasses_old_log_probs())
      out.bypass = *spec::bypass_terms(job.algorithm.rollout_correction);
    return out;
  }

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const Weights<T>& w, const Experience<T>& e, const DeviceBatch<Ops>& batch,
             const T& hidden, KeptNumbers<T>& numbers) const {
    const T rows = batch.response_rows();
    const T targets = batch.targets();
    const LogProbs<T> out = log_probs(ops, w, hidden, rows, targets, options);
    T d_log_probs, d_entropy;
    {
      const LossMask<T> tokens = batch.mask();
      LossSums<T> sums;
      gradients(ops, e, batch, tokens, batch.by_sequence(out.log_probs), d_log_probs, d_entropy,
                sums);
      if (old_is_current)  // no earlier phase has computed it
        sums.push_back(
            {"actor/entropy", tokens.mean(batch.by_sequence(out.entropy)), tokens.count});
      numbers = KeptNumbers<T>(ops, sums);
    }
    return log_probs_backward(ops, w, hidden, rows, targets, out, batch.by_row(d_log_probs),
                              batch.by_row(d_entropy), options);
  }

 private:
  // The entropy needs a copy of the exponentials. Halves keep it as small as logits in bfloat16.
  static constexpr std::int64_t kPartsWithEntropy = 2;
  [[nodiscard]] bool in_loss() const { return config.entropy_coeff != 0; }

  // Gradients of the loss with respect to `current`, the log-probabilities, and to the entropy: (B, R).
  template <class Ops, class T>
  void gradients(Ops& ops, const Experience<T>& e, const DeviceBatch<Ops>& batch,
                 const LossMask<T>& tokens, const T& current, T& d_log_probs, T& d_entropy,
                 LossSums<T>& numbers) const {
    const spec::LossAggregation mode = config.loss_agg_mode;
    const spec::LossAggregation policy_mode = spec::aggregation_of(config.loss_mode, mode);
    const T weights = loss_weights(ops, batch.mask(), mode, scale);
    const T old = old_is_current ? current : batch.part(e.old_log_probs);
    LossMask<T> mask = tokens;
    T policy_weights =
        policy_mode == mode ? weights : loss_weights(ops, batch.mask(), policy_mode, scale);
    if (bypass)
      bypass_rollout(ops, batch, current, old, tokens, weights, mask, policy_weights, numbers);
    if (e.rollout_weights.defined())
      policy_weights = ops.multiply(policy_weights, batch.part(e.rollout_weights));
    const PolicyInputs<T> in{old,  current,        batch.part(e.advantages),
                             mask, policy_weights, batch.part(e.noise)};
    PolicyGradient<T> policy =
        bypass && bypass->reinforce ? gpg_policy_loss(ops, in) : policy_loss(ops, in, config);
    d_log_probs = std::move(policy.d_log_probs);
    if (config.use_kl_loss) {
      const spec::KlKind kind = config.kl_loss_type;
      const T delta = ops.subtract(current, batch.part(e.ref_log_probs));
      numbers.push_back({"actor/kl_loss", weighed(kl_value(ops, delta, kind.value), weights)});
      const T d_kl =
          kl_slope(ops, delta, kind.straight_through ? spec::KlEstimator::kK2 : kind.value);
      ops.multiply_(d_kl, weights);
      ops.scale_(d_kl, config.kl_loss_coef);
      d_log_probs = ops.add(d_log_probs, d_kl);  // a term may have the policy's own
    }
    if (in_loss()) {
      d_entropy = ops.clone(weights);
      ops.scale_(d_entropy, -config.entropy_coeff);
    }
    const PolicyStatistics<T>& s = policy.statistics;
    numbers.insert(numbers.end(), {{"actor/pg_loss", s.loss},
                                   {"actor/pg_clipfrac", s.clip_fraction, tokens.count},
                                   {"actor/pg_clipfrac_lower", s.clip_fraction_lower, tokens.count},
                                   {"actor/ppo_kl", s.kl, tokens.count}});
  }

  // Bypass mode: the rollout's policy replaces the old one. Tokens are rejected, and weighted
  // without a ratio.
  template <class Ops, class T>
  void bypass_rollout(Ops& ops, const DeviceBatch<Ops>& batch, const T& current, const T& old,
                      const LossMask<T>& tokens, const T& weights, LossMask<T>& mask,
                      T& policy_weights, LossSums<T>& numbers) const {
    const RolloutTerms<T> terms = rollout_terms(ops, current, old, batch.mask(), *bypass);
    mask = terms.mask;
    ops.multiply_(weights, terms.mask);
    if (!bypass->rejections.empty())
      numbers.push_back(
          {"rollout_corr/rollout_rs_masked_fraction", 1 - tokens.mean(terms.mask), tokens.count});
    if (!terms.weights.defined()) return;
    numbers.push_back({"rollout_corr/rollout_is_mean", tokens.mean(terms.weights), tokens.count});
    policy_weights = ops.multiply(policy_weights, terms.weights);
  }
};

/// The critic's loss. Reads returns and values.
struct ValueObjective {
  double cliprange = 0;
  spec::LossAggregation aggregation = spec::LossAggregation::kTokenMean;
  LossScale scale;
  static constexpr std::int64_t kSequencesOfRow = 1;

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const Weights<T>& w, const Experience<T>& e, const DeviceBatch<Ops>& batch,
             const T& hidden, KeptNumbers<T>& numbers) const {
    const T rows = batch.response_rows();
    T d_values;
    {
      const LossMask<T> mask = batch.mask();
      const T values = batch.by_sequence(scores(ops, w, hidden, rows));
      const T weights = loss_weights(ops, batch.mask(), aggregation, scale);
      ValueGradient<T> loss = value_loss(ops, values, batch.part(e.returns), batch.part(e.values),
                                         mask, weights, cliprange);
      numbers = {ops,
                 {{"critic/vf_loss", loss.loss},
                  {"critic/vf_clipfrac", loss.clip_fraction, mask.count},
                  {"critic/vpred_mean", mask.mean(values), mask.count}}};
      d_values = std::move(loss.d_values);
    }
    return scores_backward(ops, w, hidden, rows, batch.by_row(d_values));
  }
};

/// Cross entropy of the responses, divided by `tokens`.
struct CrossEntropyObjective {
  double tokens = 1;
  LogProbOptions options{.accuracy = true};
  static constexpr std::int64_t kSequencesOfRow = 1;

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const Weights<T>& w, const Experience<T>&, const DeviceBatch<Ops>& batch,
             const T& hidden, KeptNumbers<T>& numbers) const {
    const T weights = ops.clone(batch.mask());
    ops.divide_(weights, tokens);
    const T flat = batch.by_row(weights);
    CrossEntropy<T> out =
        cross_entropy(ops, w, hidden, batch.response_rows(), batch.targets(), flat, options);
    const auto total = [&](const T& values) {
      return weighed(values, flat, /*over_context=*/true);
    };
    numbers = {ops,
               {{"train/loss", {total(out.values.log_probs), -1}},
                {"train/mean_token_accuracy", total(out.values.right)}}};
    return std::move(out.d_hidden);
  }
};

/// The Bradley-Terry loss of pairs. Each micro-batch has all chosen, then all rejected. Reads
/// margins. The loss is divided by `pairs`.
struct PairObjective {
  double center = 0, pairs = 1;
  static constexpr std::int64_t kSequencesOfRow = 2;

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const Weights<T>& w, const Experience<T>& e, const DeviceBatch<Ops>& batch,
             const T& hidden, KeptNumbers<T>& numbers) const {
    const std::int64_t count = batch.size() / 2;
    const T last = batch.last_token_rows();
    T d_scores;
    {
      const T both = ops.view(batch.last_by_sequence(scores(ops, w, hidden, last)), {2, -1});
      const T margins = batch.part(e.margins, batch.first() / 2, count);
      PairGradient<T> loss = pairwise_loss(ops, both, margins, center, pairs);
      const auto n = static_cast<double>(count);
      const auto pairs_here = LossValue<T>::fixed(n);
      numbers = {ops,
                 {{"train/loss", loss.loss},
                  {"train/accuracy", loss.right / n, pairs_here},
                  {"train/margin", loss.margin / n, pairs_here}}};
      d_scores = std::move(loss.d_scores);
    }
    return scores_backward(ops, w, hidden, last, batch.last_by_row(ops.view(d_scores, {-1})));
  }
};

/// DPO's loss of pairs, arranged as above. Reads reference_sums.
struct PreferenceObjective {
  const spec::DpoConfig& config;
  double pairs = 1;
  LogProbOptions options{};
  static constexpr std::int64_t kSequencesOfRow = 2;

  template <class Ops, class T = typename Ops::Tensor>
  T d_hidden(Ops& ops, const Weights<T>& w, const Experience<T>& e, const DeviceBatch<Ops>& batch,
             const T& hidden, KeptNumbers<T>& numbers) const {
    const T rows = batch.response_rows();
    const T targets = batch.targets();
    const LogProbs<T> out = log_probs(ops, w, hidden, rows, targets, options);
    T d_log_probs;
    {
      PreferenceGradient<T> loss =
          preference_loss(ops, batch.by_sequence(out.log_probs), batch.mask(),
                          batch.part(e.reference_sums), config, pairs);
      const auto n = static_cast<double>(batch.size() / 2);
      LossSums<T> sums{{"train/loss", loss.statistics.loss}};
      for (const auto& [name, value] : preference_means(loss.statistics, n))
        sums.push_back({name, value, LossValue<T>::fixed(n)});
      numbers = {ops, sums};
      d_log_probs = std::move(loss.d_log_probs);
    }
    return log_probs_backward(ops, w, hidden, rows, targets, out,
                              batch.by_row(std::exchange(d_log_probs, {})), T(), options);
  }
};

/// Trains micro-batches of `e` (in rows or pairs) on the model `w`; all of them pass through a
/// block before the next block. Adds the gradients, except those of a tied embedding's rows if
/// `tied` takes them. Returns the objective's numbers per micro-batch.
template <class Ops, class Objective, class T = typename Ops::Tensor>
std::vector<KeptNumbers<T>> train_group(Ops& ops, const Weights<T>& w, const Experience<T>& e,
                                        Group group, const Objective& objective,
                                        const spec::Checkpointing& keep,
                                        TiedRows<T>* tied = nullptr) {
  constexpr std::int64_t kOfRow = Objective::kSequencesOfRow;
  std::vector<DeviceBatch<Ops>> batches;
  std::vector<BatchTokens<T>> tokens;
  for (const MicroBatch& micro : group) {
    batches.emplace_back(ops, e.sequences, kOfRow * micro.first, kOfRow * micro.count,
                         loss_dtype(ops, w));
    tokens.push_back(batches.back().tokens());
  }
  std::vector<Tape<T>> tapes = forward_train(ops, w, tokens, keep);
  std::vector<KeptNumbers<T>> numbers(group.size());
  std::vector<T> d_hidden;
  {
    const UsedTable<T> head(w, Table::kHead, BlockUse::kAddGradients);
    head.gradients().begin(ops);
    for (std::size_t i = 0; i < group.size(); ++i) {
      d_hidden.push_back(objective.d_hidden(ops, w, e, batches[i], tapes[i].hidden, numbers[i]));
      tapes[i].hidden = T();
    }
    head.gradients().end([&](UnitKey unit, const T& gradients) {
      return complete_gradients(ops, w, unit, gradients);
    });
  }
  if (tied == nullptr) {
    backward(ops, w, std::move(tapes), std::move(d_hidden));
    return numbers;
  }
  blocks_backward(ops, w, w.architecture.chunk(0), tapes, d_hidden);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Tape<T>& tape = tapes[i];
    tied->keep(ops, group[i], tape.tokens,
               embed_rows_backward(ops, w, tape.tokens, tape.rows, std::move(d_hidden[i])));
  }
  return numbers;
}

/// Forward and backward of the first block over a batch of N tokens, for plans that estimate its
/// tensors. `hidden` and the gradient are (N, C), or (n, C) with sequence parallelism. between()
/// runs while the block's tensors are kept.
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

}  // namespace neap::step
