// Losses, gradients and advantages against make_goldens.py.
#include <set>

#include "golden_file.h"
#include "ops/aten_ops.h"
#include "rlhf/experience/core_algos.h"
#include "rlhf/experience/rollout_correction.h"
#include "spec/types/loss_kinds.h"
#include "step/training/policy_losses.h"
#include "step/training/preference.h"
#include "step/training/rollout_terms.h"

namespace neap::rlhf {
namespace {

using neap::testing::expect_close;
using neap::testing::goldens;
using neap::testing::mask_of;
using neap::testing::numbers;
using neap::testing::table;

// Of a number of a loss.
double item(const step::LossValue<at::Tensor>& value) {
  ops::AtenOps ops(at::kCPU);
  return step::read_values(ops, {value}).front();
}

spec::ActorConfig config_of(const Json& want) {
  spec::ActorConfig config;
  config.loss_mode = *spec::parse_policy_loss(want["loss_mode"].get<std::string>());
  config.loss_agg_mode = *spec::parse_loss_aggregation(want["loss_agg_mode"].get<std::string>());
  config.clip_ratio_low = want["low"].get<double>();
  config.clip_ratio_high = want["high"].get<double>();
  config.clip_ratio_c = want["c"].get<double>();
  const auto read = [&](const char* name, double& value) { value = want[name].get<double>(); };
  read("dro_beta", config.dro_beta);
  read("tau_pos", config.tau_pos);
  read("tau_neg", config.tau_neg);
  read("clip_cov_ratio", config.clip_cov_ratio);
  read("clip_cov_lb", config.clip_cov_lb);
  read("clip_cov_ub", config.clip_cov_ub);
  read("kl_cov_ratio", config.kl_cov_ratio);
  read("ppo_kl_coef", config.ppo_kl_coef);
  return config;
}

// Rows [first, first + count) of a mini-batch.
step::PolicyGradient<at::Tensor> part_of(const Json& batch, const Json& want, std::int64_t first,
                                         std::int64_t count) {
  ops::AtenOps ops(at::kCPU);
  const spec::ActorConfig config = config_of(want);
  const at::Tensor all = mask_of(batch["lengths"], batch["width"].get<std::int64_t>());
  const at::Tensor mask = all.narrow(0, first, count);
  const auto rows = [&](const char* name) { return table(batch[name]).narrow(0, first, count); };
  const at::Tensor weights =
      step::loss_weights(ops, mask, spec::aggregation_of(config.loss_mode, config.loss_agg_mode),
                         loss_scale(all, want["length"].get<std::int64_t>()));
  return step::policy_loss(ops,
                           step::PolicyInputs<at::Tensor>{
                               rows("old"), rows("new"), rows("advantage"), mask, weights,
                               spec::draws_tokens(config.loss_mode) ? rows("noise") : at::Tensor()},
                           config);
}

void expect_policy(const Json& batch) {
  const auto rows = static_cast<std::int64_t>(batch["lengths"].size());
  for (const Json& want : batch["cases"]) {
    SCOPED_TRACE(want["loss_mode"].get<std::string>() + " " +
                 want["loss_agg_mode"].get<std::string>());
    const auto whole = part_of(batch, want, 0, rows);
    expect_close(item(whole.statistics.loss), want["loss"].get<double>());
    expect_close(whole.d_log_probs, table(want["gradient"]));
    expect_close(item(whole.statistics.clip_fraction), want["clip_fraction"].get<double>());
    expect_close(item(whole.statistics.clip_fraction_lower),
                 want["clip_fraction_lower"].get<double>());
    if (want["of_a_micro_batch"].get<bool>()) continue;
    // Micro-batches, and the rows of ranks, add up to the mini-batch whatever their sizes.
    const auto first = part_of(batch, want, 0, 1);
    const auto rest = part_of(batch, want, 1, rows - 1);
    expect_close(item(first.statistics.loss) + item(rest.statistics.loss),
                 want["loss"].get<double>());
    expect_close(at::cat({first.d_log_probs, rest.d_log_probs}), whole.d_log_probs);
  }
}

TEST(LossGoldens, PolicyLossesWithEveryAggregation) {
  EXPECT_EQ(goldens()["policy"]["cases"].size(),
            spec::policy_loss_names().size() * (spec::loss_aggregation_names().size() + 1));
  expect_policy(goldens()["policy"]);
}

TEST(LossGoldens, ValuesOfTheOtherSystems) {
  expect_policy(goldens()["published"]);
}

TEST(LossGoldens, Preferences) {
  const Json& golden = goldens()["preferences"];
  ops::AtenOps ops(at::kCPU);
  const at::Tensor mask = mask_of(golden["lengths"], golden["width"].get<std::int64_t>());
  const double pairs = static_cast<double>(mask.size(0)) / 2;
  spec::DpoConfig config;
  config.beta = golden["beta"].get<double>();
  std::set<std::string> seen;
  for (const Json& want : golden["cases"]) {
    const std::string name = want["loss_type"].get<std::string>();
    SCOPED_TRACE(name);
    seen.insert(name);
    config.loss_type = *spec::parse_preference_loss(name);
    config.label_smoothing = want["label_smoothing"].get<double>();
    const auto got = step::preference_loss(ops, table(golden["new"]), mask,
                                           numbers(golden["reference"]), config, pairs);
    expect_close(item(got.statistics.loss), want["loss"].get<double>());
    expect_close(got.d_log_probs, table(want["gradient"]));
    expect_close(item(got.statistics.chosen_reward), want["chosen_reward"].get<double>());
    expect_close(item(got.statistics.rejected_reward), want["rejected_reward"].get<double>());
    EXPECT_EQ(item(got.statistics.right), want["right"].get<double>());
  }
  EXPECT_EQ(seen.size(), spec::preference_loss_names().size());
}

TEST(LossGoldens, RewardModelsWithMarginAndCentring) {
  const Json& golden = goldens()["rewards"];
  ops::AtenOps ops(at::kCPU);
  const at::Tensor scores = table(golden["scores"]);
  for (const Json& want : golden["cases"]) {
    const auto got =
        step::pairwise_loss(ops, scores, numbers(golden["margins"]), want["center"].get<double>(),
                            static_cast<double>(scores.size(1)));
    expect_close(item(got.loss), want["loss"].get<double>());
    expect_close(got.d_scores, table(want["gradient"]));
  }
}

TEST(LossGoldens, BypassModeTakesTheRolloutAsTheOldPolicy) {
  const Json& golden = goldens()["bypasses"];
  ops::AtenOps ops(at::kCPU);
  const at::Tensor mask = mask_of(golden["lengths"], golden["width"].get<std::int64_t>());
  const at::Tensor current = table(golden["trainer"]), rollout = table(golden["rollout"]);
  const at::Tensor weights =
      step::loss_weights(ops, mask, spec::LossAggregation::kTokenMean, loss_scale(mask, 1));
  for (const Json& want : golden["cases"]) {
    SCOPED_TRACE(want.dump());
    spec::RolloutCorrectionConfig config;
    config.bypass_mode = true;
    config.loss_type = want["loss_type"].get<std::string>();
    config.rollout_is = want["rollout_is"].get<std::string>();
    config.rollout_is_threshold = want["rollout_is_threshold"].get<std::string>();
    config.rollout_is_batch_normalize = want["normalize"].get<bool>();
    config.rollout_rs = want["rollout_rs"].get<std::string>();
    config.rollout_rs_threshold = want["rollout_rs_threshold"].get<std::string>();
    const spec::BypassTerms terms = value_or_throw(spec::bypass_terms(config));
    const auto made = step::rollout_terms(ops, current, rollout, mask, terms);
    at::Tensor policy_weights = weights * made.mask;
    if (made.weights.defined()) policy_weights = policy_weights * made.weights;
    const step::PolicyInputs<at::Tensor> in{rollout, current, table(golden["advantage"]), made.mask,
                                            policy_weights};
    const auto got = terms.reinforce ? step::gpg_policy_loss(ops, in)
                                     : step::vanilla_policy_loss(ops, in, spec::ActorConfig());
    expect_close(item(got.statistics.loss), want["loss"].get<double>());
    expect_close(got.d_log_probs, table(want["gradient"]));
  }
}

TEST(LossGoldens, CorrectionsBetweenRolloutAndTrainer) {
  const Json& golden = goldens()["corrections"];
  const RolloutDivergence divergence{
      table(golden["rollout"]), table(golden["trainer"]),
      mask_of(golden["lengths"], golden["width"].get<std::int64_t>())};
  Metrics metrics;
  describe_divergence(divergence, metrics);
  for (const auto& [name, want] : golden["divergence"].items()) {
    SCOPED_TRACE(name);
    expect_close(metrics.at("rollout_corr/" + name), want.get<double>());
  }
  for (const Json& want : golden["cases"]) {
    SCOPED_TRACE(want.dump());
    spec::RolloutCorrectionConfig config;
    config.rollout_is = want["rollout_is"].get<std::string>();
    config.rollout_is_threshold = want["rollout_is_threshold"].get<std::string>();
    config.rollout_is_batch_normalize = want["normalize"].get<bool>();
    config.rollout_rs = want["rollout_rs"].get<std::string>();
    config.rollout_rs_threshold = want["rollout_rs_threshold"].get<std::string>();
    const at::Tensor weights = rollout_weights(config, divergence, metrics);
    ASSERT_EQ(weights.defined(), want.contains("weights"));
    if (weights.defined()) {
      expect_close(weights, table(want["weights"]));
      expect_close(metrics.at("rollout_corr/rollout_is_mean"), want["mean"].get<double>());
      expect_close(metrics.at("rollout_corr/rollout_is_eff_sample_size"),
                   want["eff_sample_size"].get<double>());
    }
    const at::Tensor mask = accepted_mask(config, divergence, metrics);
    expect_close(mask, want.contains("mask") ? table(want["mask"]) : divergence.mask);
  }
}

// With ratios far beyond the clamp, too.
TEST(LossGoldens, CorrectionsOfABatchAndOfBypassModeAreTheSame) {
  const at::Tensor mask = mask_of({3, 2, 0}, 3);
  const at::Tensor rollout = at::zeros({3, 3});
  const at::Tensor current = table({{25.0, -24.5, -0.25}, {-30.0, 0.5, 60.0}, {40.0, 1.0, 1.0}});
  ops::AtenOps ops(at::kCPU);
  for (const char* weighs : {"token", "sequence"}) {
    for (const char* bounds : {"2.0", "0.5_5.0"}) {
      spec::RolloutCorrectionConfig config;
      config.rollout_is = weighs;
      config.rollout_is_threshold = bounds;
      config.rollout_is_batch_normalize = bounds[0] == '2';
      config.rollout_rs = "token_k3,seq_mean_k1,seq_max_k2";
      config.rollout_rs_threshold = "1e6,0.0_15.0,400";
      config.loss_type = "reinforce";
      Metrics metrics;
      const RolloutDivergence divergence{rollout, current, mask};
      const auto made = step::rollout_terms(ops, current, rollout, mask,
                                            value_or_throw(spec::bypass_terms(config)));
      expect_close(made.weights, rollout_weights(config, divergence, metrics));
      expect_close(made.mask, accepted_mask(config, divergence, metrics));
    }
  }
  // The sum of a sequence counts as it is, and is clamped as a whole.
  spec::ImportanceWeights sequences;
  sequences.sequences = true;
  const at::Tensor r = step::rollout_log_ratio(ops, current, rollout, mask);
  expect_close(step::probability_ratios(ops, r, mask, sequences).select(1, 0),
               at::tensor({std::exp(0.25), std::exp(-20.0), 0.0}, at::kFloat));
}

// Scores 2, -1 and 4, of which the first two are of responses without an end token.
TEST(LossGoldens, TruncatedAnswersArePenalised) {
  const at::Tensor scores = at::tensor({2.0, -1.0, 4.0}, at::kDouble);
  const at::Tensor truncated = at::tensor({1.0, 1.0, 0.0}, at::kDouble);
  spec::AlgorithmConfig config;
  const auto expect = [&](const std::vector<double>& want) {
    EXPECT_TRUE(penalize_truncated(config, scores, truncated).equal(at::tensor(want, at::kDouble)));
  };
  expect({2, -1, 4});
  config.stop_properly_penalty_coef = 0.5;
  expect({1, -0.5, 4});
  config.stop_properly_penalty_coef = -3;
  expect({-3, -3, 4});
  config.stop_properly_penalty_coef = 1;
  config.missing_eos_penalty = 1.5;
  expect({0.5, -2.5, 4});
}

TEST(LossGoldens, GroupsWithOneScoreAreDropped) {
  const at::Tensor metric = at::tensor({1.0, 1.0, 0.0, 1.0, 2.0, 2.0, -1.0, 3.0});
  EXPECT_TRUE(rows_of_varied_groups(metric, 2).equal(at::tensor({2, 3, 6, 7}, at::kLong)));
  EXPECT_TRUE(rows_of_varied_groups(metric, 4).equal(at::arange(8)));
  EXPECT_EQ(rows_of_varied_groups(at::ones({4}), 4).numel(), 0);
}

TEST(LossGoldens, Advantages) {
  const Json& golden = goldens()["advantages"];
  const at::Tensor mask = mask_of(golden["lengths"], golden["width"].get<std::int64_t>());
  const AdvantageInputs in{table(golden["rewards"]),
                           mask,
                           {},
                           numbers(golden["baselines"]),
                           golden["group"].get<std::vector<std::int64_t>>()};
  spec::AlgorithmConfig config;
  config.norm_adv_by_std_in_grpo = false;
  for (const auto& [name, want] : golden["want"].items()) {
    SCOPED_TRACE(name);
    config.adv_estimator = *spec::parse_advantage_estimator(name);
    expect_close(make_advantages(config, in).advantages, table(want));
  }
}

}  // namespace
}  // namespace neap::rlhf
