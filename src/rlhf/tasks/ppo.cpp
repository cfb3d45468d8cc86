// PPO with a critic and GRPO without one: the cycle of phases that the memory plan describes.
#include <ATen/ATen.h>

#include <optional>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/random.h"
#include "rlhf/experience/core_algos.h"
#include "rlhf/experience/experience.h"
#include "rlhf/experience/experience_metrics.h"
#include "rlhf/experience/kept_experience.h"
#include "rlhf/experience/ppo_models.h"
#include "rlhf/experience/rollout_correction.h"
#include "rlhf/experience/row_balance.h"
#include "rlhf/rollout/evaluation.h"
#include "rlhf/rollout/response_source.h"
#include "rlhf/rollout/reward_scorer.h"
#include "rlhf/rollout/rollout_records.h"
#include "rlhf/tasks/ppo_update.h"
#include "rlhf/trainer/run_state.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {
namespace {

constexpr std::uint64_t kNoiseStream = 0x6e6f6973ULL;
constexpr const char* kPpoStateFile = "ppo.json";
const Json::json_pointer kStartOfKl("/algorithm/kl_ctrl/kl_coef");

class PpoTrainer final : public Trainer {
 public:
  explicit PpoTrainer(Context& context)
      : context_(context),
        models_(context),
        scorer_(context),
        source_(context, models_, scorer_),
        kl_control_(context.job.algorithm),
        keeper_(context) {}

  void load() override { models_.load(); }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return source_.steps_per_epoch(); }
  Metrics train_step(std::int64_t step) override;
  [[nodiscard]] std::vector<report::Rollout> take_rollouts() override {
    return std::exchange(rollouts_, {});
  }
  [[nodiscard]] bool can_validate() const override { return held_out().size() > 0; }
  Validation validate(std::int64_t step) override;
  void save(const std::filesystem::path& folder, train::SavedFiles& files) override;
  void restore(const std::filesystem::path& folder) override;

 private:
  [[nodiscard]] const spec::Job& job() const { return context_.job; }
  [[nodiscard]] const Rows& held_out() const { return context_.data.held_out; }
  /// Computes everything up to the advantages.
  [[nodiscard]] Experience make_experience(std::int64_t step, Metrics& metrics);
  /// (rows, tokens) for these rows of the batch.
  [[nodiscard]] at::Tensor token_noise(const std::vector<std::int64_t>& rows,
                                       std::int64_t step) const;
  /// Assigns the batch to ranks with `deal`, and returns this rank's rows with the models' results.
  /// The batch gets the numbers that it needs.
  [[nodiscard]] Experience compute_on_dealt_rows(Experience& all, const train::Sequences& generated,
                                                 const RowCounts& counts,
                                                 const parallel::RowDeal& deal, Metrics& metrics);
  /// Whether the advantages or the correction need log-probabilities of the whole batch. If not,
  /// they stay on their ranks.
  [[nodiscard]] bool batch_reads_log_probs() const {
    return job().algorithm.use_kl_in_reward || job().keeps_rollout_log_probs();
  }
  /// Shows responses of the whole batch. Their tokens are gathered on the first rank. Every rank
  /// calls it.
  void show_rollouts(Experience all, const train::Sequences& generated, const RowCounts& counts);
  /// Operates on the whole batch.
  void add_advantages(Experience& all, Metrics& metrics);
  /// Computes mask and weights of the loss for the whole batch. The mask of `all` becomes that of
  /// the loss.
  void correct_loss(Experience& all, Metrics& metrics);

  Context& context_;
  PpoModels models_;
  RewardScorer scorer_;
  ResponseSource source_;
  KlController kl_control_;
  std::optional<double> measured_kl_;  // of the current step
  ExperienceKeeper keeper_;
  std::vector<report::Rollout> rollouts_;  // of the last step
};

Metrics PpoTrainer::train_step(std::int64_t step) {
  Metrics metrics;
  source_.begin_step();
  const Experience e = make_experience(step, metrics);
  // After everything that may fail because of something outside the run.
  if (const auto kl = std::exchange(measured_kl_, {}))
    kl_control_.update(*kl, job().sequences_per_step());
  update_models(context_, models_, e, step, metrics);
  source_.finish_step();
  return metrics;
}

// One number in (0, 1] per token. It depends on the token's place in the batch, and not on the rank
// that has it.
at::Tensor PpoTrainer::token_noise(const std::vector<std::int64_t>& rows, std::int64_t step) const {
  const std::uint64_t key = random_key({static_cast<std::uint64_t>(job().trainer.seed),
                                        kNoiseStream, static_cast<std::uint64_t>(step)});
  const std::int64_t tokens = job().data.max_response_length;
  at::Tensor out = at::empty({std::ssize(rows), tokens}, at::dtype(at::kFloat));
  float* value = out.data_ptr<float>();
  for (const std::int64_t row : rows)
    for (std::int64_t i = row * tokens; i < (row + 1) * tokens; ++i)
      *value++ = 1 - uniform(key, static_cast<std::uint64_t>(i));
  return out;
}

Experience PpoTrainer::make_experience(std::int64_t step, Metrics& metrics) {
  const bool filter = job().algorithm.filter_groups.enable;
  const Responses mine =
      filter ? source_.varied_responses(kl_control_.value(), metrics) : source_.respond(metrics);
  const bool baseline = job().has_greedy_baseline();
  Experience greedy;
  if (baseline) greedy = source_.respond_greedily(mine, metrics);
  Experience all = gather_numbers(context_, mine.e, job().rollout.n, job().sequences_per_step());
  const RowCounts counts(all.sequences);
  const parallel::RowDeal deal = deal_responses(context_, all, metrics);
  Experience dealt = compute_on_dealt_rows(all, mine.e.sequences, counts, deal, metrics);
  Experience scored;
  if (!filter) {
    const Stopwatch watch(metrics, "reward");
    scored = source_.score(mine, context_.sharder().pick(all.model_scores, job().rollout.n));
  }
  if (baseline) scored.baselines = source_.score_baselines(mine, greedy, metrics);
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
  if (shows_rollouts(job().trainer, step + 1)) show_rollouts(all, mine.e.sequences, counts);
  correct_loss(all, metrics);
  const at::Tensor tokens = all.sequences.mask.sum(-1, false, at::kDouble);
  // Updates do not read these.
  for (Experience* e : {&all, &dealt}) e->entropy = e->rollout_log_probs = at::Tensor();
  transform_rows(all, [&](const at::Tensor& t) { return deal.pick(t); });
  take_rows(dealt, std::move(all));
  if (spec::draws_tokens(job().actor.loss_mode)) dealt.noise = token_noise(deal.own(), step);
  dealt.batch_tokens = tokens;
  if (job().keeps_experience()) keeper_.keep(step, steps_per_epoch(), dealt, deal, counts, metrics);
  return dealt;
}

void PpoTrainer::show_rollouts(Experience all, const train::Sequences& generated,
                               const RowCounts& counts) {
  const parallel::RowDeal in_turns = generated_rows(context_, counts);
  parallel::RowLists first(static_cast<std::size_t>(context_.data_ranks().size()));
  for (std::int64_t row = 0; row < std::ssize(counts.sequences); ++row)
    first.front().push_back(row);
  all.sequences.tokens =
      in_turns.send(generated.tokens, parallel::RowDeal(context_.data_ranks(), std::move(first)),
                    counts.sequences, context_.text.pad);
  if (context_.ranks.first()) rollouts_ = rollouts_of(context_, scorer_, all);
}

Experience PpoTrainer::compute_on_dealt_rows(Experience& all, const train::Sequences& generated,
                                             const RowCounts& counts, const parallel::RowDeal& deal,
                                             Metrics& metrics) {
  Experience mine = all;
  transform_rows(mine, [&](const at::Tensor& t) { return deal.pick(t); });
  mine.sequences =
      send_sequences(context_, generated, generated_rows(context_, counts), deal, counts);
  Experience computed;
  if (!all.old_log_probs.defined()) {
    models_.add_log_probs(mine, metrics);
    computed.entropy = std::exchange(mine.entropy, {});
    if (batch_reads_log_probs()) {
      computed.old_log_probs = mine.old_log_probs;
      computed.ref_log_probs = mine.ref_log_probs;
    }
  }
  if (train::ModelWorker* critic = models_.critic()) {
    const Stopwatch watch(metrics, "values");
    computed.values = mine.values = response_values(context_, *critic, mine.sequences);
  }
  if (!all.scores.defined()) {
    const Stopwatch watch(metrics, "reward");
    computed.model_scores = models_.scores(mine.sequences, spec::PhaseId::kRewards);
  }
  gather_rows(computed, deal, counts, sequence_shape(context_).pad);
  take_rows(all, std::move(computed));
  return mine;
}

void PpoTrainer::correct_loss(Experience& e, Metrics& metrics) {
  at::Tensor mask = e.sequences.mask;
  if (e.rollout_log_probs.defined() && !job().bypasses_old_log_probs()) {
    const RolloutDivergence divergence{e.rollout_log_probs, e.old_log_probs, mask};
    const spec::RolloutCorrectionConfig& config = job().algorithm.rollout_correction;
    describe_divergence(divergence, metrics);
    e.rollout_weights = rollout_weights(config, divergence, metrics);
    // GMPO has one ratio per sequence, so it needs one weight per sequence.
    if (config.weighs() && job().actor.loss_mode == spec::PolicyLoss::kGeoMean)
      e.rollout_weights = geometric_means(e.rollout_weights, mask);
    mask = accepted_mask(config, divergence, metrics);
  }
  if (job().algorithm.mask_truncated_completions) mask = mask * (1 - e.truncated).unsqueeze(-1);
  e.sequences.mask = mask;
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
    measured_kl_ = shaped.kl;
    metrics["actor/reward_kl_penalty"] = shaped.kl;
    metrics["actor/reward_kl_penalty_coeff"] = beta;
  }
  AdvantageInputs in{rewards, mask, e.values, e.baselines, {}};
  // Sequences that answer the same prompt form a group.
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
  EvaluationSetup setup{.actor = models_.actor(),
                        .reward_model = models_.reward(),
                        .functions = scorer_,
                        .sampling = sampling,
                        .key = validation_key(job())};
  // The KL is a mean over what the actor samples.
  if (job().validates_divergence()) {
    setup.add = [&](Experience& mine) {
      Metrics timings;  // not used here
      models_.add_log_probs(mine, timings);
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
  // Steps run the same phases, so the stage is named.
  if (context_.progress != nullptr) context_.progress->set_stage("validation");
  out.metrics = evaluate(context_, prompts, setup).metrics;
  if (context_.progress != nullptr) context_.progress->set_stage("");
  return out;
}

void PpoTrainer::save(const std::filesystem::path& folder, train::SavedFiles& files) {
  models_.save(folder, files);
  if (!context_.ranks.first()) return;
  Json state = Json::object();
  state["kl_coef"] = kl_control_.value();
  state["batches"] = source_.batches();
  throw_if_error(write_file_atomic(folder / kPpoStateFile, json_text(state, 1) + "\n"));
}

void PpoTrainer::restore(const std::filesystem::path& folder) {
  models_.restore(folder);
  const std::filesystem::path file = folder / kPpoStateFile;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has no {}: a run from kept experience made it. Set "
                       "actor_rollout_ref.model.path = \"{}\" to start a run from its models",
                       folder.string(), kPpoStateFile, (folder / "actor").string()));
  const Json state = value_or_throw(
      parse_json(value_or_throw(read_file(file, read_limits::kRunState)), file.string()));
  for (const char* key : {"kl_coef", "batches"}) {
    if (state.is_object() && state.contains(key) && state[key].is_number()) continue;
    throw Error(ErrorCode::kCorrupt, format("{}: \"{}\" is missing", file.string(), key));
  }
  const Json config = read_run_state(folder).value("config", Json::object());
  kl_control_.restore(state["kl_coef"].get<double>(),
                      config.value(kStartOfKl, job().algorithm.kl_coef));
  source_.restore(state["batches"].get<std::int64_t>());
}

}  // namespace

std::unique_ptr<Trainer> make_ppo_trainer(Context& context) {
  return std::make_unique<PpoTrainer>(context);
}

}  // namespace neap::rlhf
