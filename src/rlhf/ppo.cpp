// PPO with a critic, and GRPO without one: the cycle of phases that the memory plan is made for.
#include <ATen/ATen.h>

#include <optional>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/random.h"
#include "rlhf/core_algos.h"
#include "rlhf/evaluation.h"
#include "rlhf/experience.h"
#include "rlhf/experience_metrics.h"
#include "rlhf/ppo_update.h"
#include "rlhf/reward_scorer.h"
#include "rlhf/rollout_correction.h"
#include "rlhf/rollout_records.h"
#include "rlhf/row_balance.h"
#include "rlhf/trainer.h"

namespace neap::rlhf {
namespace {

constexpr std::uint64_t kRolloutStream = 0x726f6c6cULL;
constexpr std::uint64_t kNoiseStream = 0x6e6f6973ULL;
constexpr const char* kPpoStateFile = "ppo.json";

class PpoTrainer final : public Trainer {
 public:
  explicit PpoTrainer(Context& context);

  void load() override {
    for (train::ModelWorker* role : workers()) role->load();
  }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }
  Metrics train_step(std::int64_t step) override;
  [[nodiscard]] std::vector<report::Rollout> take_rollouts() override {
    return std::exchange(rollouts_, {});
  }
  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }
  Validation validate(std::int64_t step) override;
  void save(const std::filesystem::path& folder) override;
  void restore(const std::filesystem::path& folder) override;

 private:
  [[nodiscard]] const spec::Job& job() const { return context_.job; }
  [[nodiscard]] std::vector<train::ModelWorker*> workers();
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }
  /// Everything up to the advantages.
  [[nodiscard]] Experience make_experience(std::int64_t step, Metrics& metrics);
  [[nodiscard]] at::Tensor token_noise(const at::Tensor& mask, std::int64_t step) const;
  /// This rank's responses to the next batch of prompts.
  struct Round {
    std::vector<PromptRow> prompts;
    Experience e;
  };
  [[nodiscard]] Round respond(Metrics& metrics);
  /// What models compute of the whole batch and it has not: each rank does its rows.
  void compute_on_dealt_rows(Experience& all, const parallel::RowDeal& deal, Metrics& metrics);
  /// `scores`, `numbers` and `model_scores` of the responses. `by_model`: the last ones.
  [[nodiscard]] Experience score(const Round& round, const at::Tensor& by_model);
  /// ReMax's greedy responses to the prompts, and what they score.
  [[nodiscard]] train::Sequences respond_greedily(const Round& round, Metrics& metrics);
  [[nodiscard]] at::Tensor score_baselines(const Round& round, const train::Sequences& greedy,
                                           Metrics& metrics);
  /// Scored responses to prompts whose responses have different scores, of as many batches as it
  /// takes: DAPO's dynamic sampling.
  [[nodiscard]] Round varied_responses(Metrics& metrics);
  /// What dynamic sampling compares, one number a response of the whole batch.
  [[nodiscard]] at::Tensor filter_metric(const Experience& all) const;
  void add_log_probs(Experience& e, Metrics& metrics);
  /// By the reward model; undefined without one.
  [[nodiscard]] at::Tensor model_scores(const train::Sequences& sequences, spec::PhaseId phase);
  /// On the whole batch.
  void add_advantages(Experience& all, Metrics& metrics);
  /// Mask and weights of the loss, on the whole batch; the mask of `all` becomes the loss's.
  void correct_loss(Experience& all, Metrics& metrics);

  Context& context_;
  train::ModelWorker actor_;
  std::optional<train::ModelWorker> reward_, reference_, critic_;
  RewardScorer scorer_;
  data::BatchOrder order_;
  KlController kl_control_;
  // Batches of prompts that the finished steps took, one each or more with a filter; and with those
  // of the step under way, which a checkpoint of a step that failed must not count.
  std::int64_t batches_ = 0, taken_ = 0;
  std::vector<report::Rollout> rollouts_;  // of the last step
};

PpoTrainer::PpoTrainer(Context& context)
    : context_(context),
      actor_(context.runtime, context.groups, context.worker_spec(spec::ModelId::kActor)),
      scorer_(context),
      order_(batch_order(context.job, context.data)),
      kl_control_(context.job.algorithm) {
  const auto make = [&](std::optional<train::ModelWorker>& worker, spec::ModelId model) {
    if (context.recipe.find(model) != nullptr)
      worker.emplace(context.runtime, context.model_groups.of(model), context.worker_spec(model));
  };
  make(reward_, spec::ModelId::kReward);
  make(reference_, spec::ModelId::kReference);
  make(critic_, spec::ModelId::kCritic);
}

std::vector<train::ModelWorker*> PpoTrainer::workers() {
  std::vector<train::ModelWorker*> out = {&actor_};
  if (reward_) out.push_back(&*reward_);
  if (reference_) out.push_back(&*reference_);
  if (critic_) out.push_back(&*critic_);
  return out;
}

Metrics PpoTrainer::train_step(std::int64_t step) {
  Metrics metrics;
  taken_ = batches_;
  const Experience e = make_experience(step, metrics);
  if (critic_) {
    const Stopwatch watch(metrics, "update_critic");
    train_critic(context_, *critic_, e, step, metrics);
  }
  {
    const Stopwatch watch(metrics, "update_actor");
    train_actor(context_, actor_, e, step, metrics);
  }
  batches_ = taken_;
  return metrics;
}

PpoTrainer::Round PpoTrainer::respond(Metrics& metrics) {
  const std::int64_t batch = taken_++;
  const std::vector<std::size_t> rows = context_.sharder().of(order_.batch(batch));
  Round round;
  run_in_step(context_.ranks, [&] { round.prompts = read_prompts(context_.data.train, rows); });
  const Stopwatch watch(metrics, "gen");
  const auto seed = static_cast<std::uint64_t>(job().trainer.seed);
  step::SamplingOptions sampling = step::sampling_options(job().rollout);
  sampling.log_probs = job().keeps_rollout_log_probs();
  round.e =
      generate_responses(context_, actor_, tokens_of(round.prompts),
                         {spec::PhaseId::kGenerate, job().rollout.n, sampling,
                          random_key({seed, kRolloutStream, static_cast<std::uint64_t>(batch)})});
  const std::vector<std::int64_t> numbers(rows.begin(), rows.end());
  round.e.rows = at::tensor(numbers, at::kLong).repeat_interleave(job().rollout.n);
  return round;
}

train::Sequences PpoTrainer::respond_greedily(const Round& round, Metrics& metrics) {
  const Stopwatch watch(metrics, "gen_max");
  return generate_responses(context_, actor_, tokens_of(round.prompts),
                            {spec::PhaseId::kGenerateBaseline, 1, step::greedy_sampling(), 0})
      .sequences;
}

Experience PpoTrainer::score(const Round& round, const at::Tensor& by_model) {
  ResponseScores scored = score_responses(context_, by_model, scorer_, round.prompts,
                                          job().rollout.n, round.e.sequences);
  Experience out;
  out.scores = penalize_truncated(job().algorithm, scored.scores, round.e.truncated);
  out.numbers = std::move(scored.numbers);
  out.model_scores = std::move(scored.model);
  return out;
}

at::Tensor PpoTrainer::score_baselines(const Round& round, const train::Sequences& greedy,
                                       Metrics& metrics) {
  const Stopwatch watch(metrics, "reward");
  const at::Tensor by_model = model_scores(greedy, spec::PhaseId::kBaselineRewards);
  return score_responses(context_, by_model, scorer_, round.prompts, 1, greedy)
      .scores.repeat_interleave(job().rollout.n);
}

PpoTrainer::Round PpoTrainer::varied_responses(Metrics& metrics) {
  const std::int64_t most = job().algorithm.filter_groups.max_num_gen_batches;
  const std::int64_t n = job().rollout.n, wanted = job().sequences_per_step();
  std::vector<Experience> kept;
  std::int64_t rows = 0, batches = 0;
  for (; rows < wanted; ++batches) {
    if (most > 0 && batches == most) {
      throw StepFailure(
          Status(ErrorCode::kTimeout,
                 format("After {} batches only {} of {} prompts have responses with different "
                        "scores; raise algorithm.filter_groups.max_num_gen_batches, or take "
                        "prompts that are neither too easy nor too hard",
                        batches, rows / n, wanted / n)),
          context_.ranks.first());
    }
    // No limit is the default, and a policy that solves nothing would generate for ever.
    if (context_.ranks.any(InterruptScope::requested())) throw StepInterrupted();
    if (batches > 1 && context_.ranks.first()) {
      log::info(
          format("{} batches of prompts generated: {} of {} prompts have responses with "
                 "different scores; generating more",
                 batches, rows / n, wanted / n));
    }
    Round round = respond(metrics);
    {
      const Stopwatch watch(metrics, "reward");
      take_rows(round.e, score(round, model_scores(round.e.sequences, spec::PhaseId::kRewards)));
    }
    if (job().filters_by_kl()) add_log_probs(round.e, metrics);
    Experience all = gather_experience(context_, round.e, n, wanted);
    const at::Tensor varied = rows_of_varied_groups(filter_metric(all), n);
    transform_rows(all, [&](const at::Tensor& t) { return t.index_select(0, varied); });
    rows += varied.numel();
    kept.push_back(std::move(all));
  }
  metrics["train/num_gen_batches"] = static_cast<double>(batches);
  Round out{{}, join(std::move(kept))};
  transform_rows(out.e, [&](const at::Tensor& t) {
    return context_.sharder().pick(t.narrow(0, 0, wanted), n);
  });
  std::vector<std::size_t> prompts;
  for (std::int64_t i = 0; i < out.e.rows.size(0); i += n)
    prompts.push_back(static_cast<std::size_t>(out.e.rows[i].item<std::int64_t>()));
  run_in_step(context_.ranks, [&] { out.prompts = read_prompts(context_.data.train, prompts); });
  return out;
}

at::Tensor PpoTrainer::filter_metric(const Experience& all) const {
  if (job().filters_by_kl()) {
    return apply_kl_penalty(place_at_end(all.scores, all.sequences.mask), all.old_log_probs,
                            all.ref_log_probs, all.sequences.mask, kl_control_.value(),
                            job().algorithm.kl_penalty)
        .token_rewards.sum(-1);
  }
  return job().algorithm.filter_groups.metric == "acc" ? scorer_.accuracies(all.numbers)
                                                       : all.scores;
}

// Numbers in (0, 1] of each token's place in the batch, whatever ranks have it.
at::Tensor PpoTrainer::token_noise(const at::Tensor& mask, std::int64_t step) const {
  const std::uint64_t key = random_key({static_cast<std::uint64_t>(job().trainer.seed),
                                        kNoiseStream, static_cast<std::uint64_t>(step)});
  at::Tensor out = at::empty_like(mask);
  float* values = out.data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i)
    values[i] = 1 - uniform(key, static_cast<std::uint64_t>(i));
  return out;
}

Experience PpoTrainer::make_experience(std::int64_t step, Metrics& metrics) {
  const bool filter = job().algorithm.filter_groups.enable;
  Round round = filter ? varied_responses(metrics) : respond(metrics);
  const bool baseline = job().has_greedy_baseline();
  train::Sequences greedy;
  if (baseline) greedy = respond_greedily(round, metrics);
  Experience all =
      gather_experience(context_, round.e, job().rollout.n, job().sequences_per_step());
  const parallel::RowDeal deal = deal_responses(context_, all, metrics);
  compute_on_dealt_rows(all, deal, metrics);
  Experience scored;
  if (!filter) {
    const Stopwatch watch(metrics, "reward");
    scored = score(round, context_.sharder().pick(all.model_scores, job().rollout.n));
  }
  if (baseline) scored.baselines = score_baselines(round, greedy, metrics);
  const Stopwatch watch(metrics, "adv");
  transform_rows(
      scored, [&](const at::Tensor& t) { return context_.sharder().gather(t, job().rollout.n); });
  take_rows(all, std::move(scored));
  add_advantages(all, metrics);
  describe_experience(job(), all, metrics);
  if (all.numbers.defined()) {
    scorer_.describe(all.numbers, metrics);
    if (all.model_scores.defined())
      summarize(metrics, format("rewards/{}", kRewardModel), all.model_scores);
  }
  if (context_.ranks.first() && shows_rollouts(job().trainer, step + 1))
    rollouts_ = rollouts_of(context_, scorer_, all);
  correct_loss(all, metrics);
  const at::Tensor mask = all.sequences.mask;
  if (spec::draws_tokens(job().actor.loss_mode)) all.noise = token_noise(mask, step);
  transform_rows(all, [&](const at::Tensor& t) { return deal.pick(t); });
  all.batch_mask = mask;
  return all;
}

void PpoTrainer::compute_on_dealt_rows(Experience& all, const parallel::RowDeal& deal,
                                       Metrics& metrics) {
  Experience mine = all;
  transform_rows(mine, [&](const at::Tensor& t) { return deal.pick(t); });
  Experience computed;
  if (!all.old_log_probs.defined()) {
    add_log_probs(mine, metrics);
    computed.old_log_probs = mine.old_log_probs;
    computed.ref_log_probs = mine.ref_log_probs;
    computed.entropy = mine.entropy;
  }
  if (critic_) {
    const Stopwatch watch(metrics, "values");
    computed.values = response_values(context_, *critic_, mine.sequences);
  }
  if (!all.scores.defined()) {
    const Stopwatch watch(metrics, "reward");
    computed.model_scores = model_scores(mine.sequences, spec::PhaseId::kRewards);
  }
  gather_rows(computed, deal, RowCounts(all.sequences), sequence_shape(context_).pad);
  take_rows(all, std::move(computed));
}

void PpoTrainer::correct_loss(Experience& e, Metrics& metrics) {
  at::Tensor mask = e.sequences.mask;
  if (e.rollout_log_probs.defined() && !job().bypasses_old_log_probs()) {
    const RolloutDivergence divergence{e.rollout_log_probs, e.old_log_probs, mask};
    const spec::RolloutCorrectionConfig& config = job().algorithm.rollout_correction;
    describe_divergence(divergence, metrics);
    e.rollout_weights = rollout_weights(config, divergence, metrics);
    // One ratio a sequence has one weight a sequence.
    if (config.weighs() && job().actor.loss_mode == spec::PolicyLoss::kGeoMean)
      e.rollout_weights = geometric_means(e.rollout_weights, mask);
    mask = accepted_mask(config, divergence, metrics);
  }
  if (job().algorithm.mask_truncated_completions) mask = mask * (1 - e.truncated).unsqueeze(-1);
  e.sequences.mask = mask;
}

void PpoTrainer::add_log_probs(Experience& e, Metrics& metrics) {
  if (job().bypasses_old_log_probs()) {
    e.old_log_probs = e.rollout_log_probs;
  } else {
    const Stopwatch watch(metrics, "old_log_prob");
    TokenLogProbs actor =
        response_log_probs(context_, actor_.model(), e.sequences, spec::PhaseId::kActorLogProbs);
    e.old_log_probs = std::move(actor.log_probs);
    e.entropy = std::move(actor.entropy);
  }
  if (!job().uses_reference()) return;
  const Stopwatch watch(metrics, "ref");
  ops::Transformer& reference = reference_ ? reference_->model() : actor_.base();
  e.ref_log_probs =
      response_log_probs(context_, reference, e.sequences, spec::PhaseId::kReferenceLogProbs)
          .log_probs;
}

at::Tensor PpoTrainer::model_scores(const train::Sequences& sequences, spec::PhaseId phase) {
  return reward_ ? response_scores(context_, *reward_, sequences, phase) : at::Tensor();
}

void PpoTrainer::add_advantages(Experience& e, Metrics& metrics) {
  const spec::AlgorithmConfig& algorithm = job().algorithm;
  const at::Tensor& mask = e.sequences.mask;
  at::Tensor rewards = place_at_end(e.scores, mask);
  if (algorithm.use_kl_in_reward) {
    const double beta = kl_control_.value();
    const ShapedReward shaped = apply_kl_penalty(rewards, e.old_log_probs, e.ref_log_probs, mask,
                                                 beta, algorithm.kl_penalty);
    rewards = shaped.token_rewards;
    kl_control_.update(shaped.kl, mask.size(0));
    metrics["actor/reward_kl_penalty"] = shaped.kl;
    metrics["actor/reward_kl_penalty_coeff"] = beta;
  }
  AdvantageInputs in{rewards, mask, e.values, e.baselines, {}};
  // Sequences that answer the same prompt.
  for (std::int64_t i = 0; i < mask.size(0); ++i) in.group.push_back(i / job().rollout.n);
  Advantages out = make_advantages(algorithm, in);
  e.advantages = std::move(out.advantages);
  e.returns = std::move(out.returns);
  summarize(metrics, "critic/rewards", rewards.sum(-1));
  summarize(metrics, "critic/advantages", e.advantages, mask);
  summarize(metrics, "critic/returns", e.returns, mask);
}

Validation PpoTrainer::validate(std::int64_t step) {
  const spec::ValidationSampling& sampling = job().rollout.val_kwargs;
  Validation out;
  EvaluationSetup setup{.actor = actor_,
                        .reward_model = reward_ ? &*reward_ : nullptr,
                        .functions = scorer_,
                        .sampling = sampling,
                        .key = validation_key(job())};
  // The KL is a mean over what the actor samples.
  if (sampling.do_sample && job().uses_reference() && !job().bypasses_old_log_probs()) {
    setup.add = [&](Experience& mine) {
      Metrics timings;  // of no interest here
      add_log_probs(mine, timings);
    };
  }
  const std::set<std::size_t> shown =
      rows_to_show(held_out().size(), static_cast<std::size_t>(job().trainer.val_samples),
                   job().trainer.seed, step);
  setup.on_response = [&](const EvaluatedResponse& response) {
    if (response.turn == 0 && shown.contains(response.row)) out.samples.push_back(response.sample);
  };
  std::vector<PromptRow> prompts;
  run_in_step(context_.ranks, [&] { prompts = read_prompts(held_out()); });
  // The same phases run in steps.
  if (context_.progress != nullptr) context_.progress->set_stage("validation");
  out.metrics = evaluate(context_, prompts, setup).metrics;
  if (context_.progress != nullptr) context_.progress->set_stage("");
  return out;
}

void PpoTrainer::save(const std::filesystem::path& folder) {
  actor_.save(folder / to_string(spec::ModelId::kActor), context_.save_options());
  if (critic_) critic_->save(folder / to_string(spec::ModelId::kCritic), context_.save_options());
  if (!context_.ranks.first()) return;
  Json state = Json::object();
  state["kl_coef"] = kl_control_.value();
  state["batches"] = batches_;
  throw_if_error(write_file_atomic(folder / kPpoStateFile, state.dump(1) + "\n"));
}

void PpoTrainer::restore(const std::filesystem::path& folder) {
  if (reward_) reward_->load();
  if (reference_) reference_->load();
  actor_.restore(folder / to_string(spec::ModelId::kActor));
  if (critic_) critic_->restore(folder / to_string(spec::ModelId::kCritic));
  const std::filesystem::path file = folder / kPpoStateFile;
  const Json state =
      value_or_throw(parse_json(value_or_throw(read_file(file, 1_MiB)), file.string()));
  for (const char* key : {"kl_coef", "batches"}) {
    if (state.is_object() && state.contains(key) && state[key].is_number()) continue;
    throw Error(ErrorCode::kCorrupt, format("{}: \"{}\" is missing", file.string(), key));
  }
  kl_control_.restore(state["kl_coef"].get<double>());
  batches_ = state["batches"].get<std::int64_t>();
}

}  // namespace

std::unique_ptr<Trainer> make_ppo_trainer(Context& context) {
  return std::make_unique<PpoTrainer>(context);
}

}  // namespace neap::rlhf
