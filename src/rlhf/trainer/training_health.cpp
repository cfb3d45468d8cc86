#include "rlhf/trainer/training_health.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::rlhf {
namespace {

constexpr int kSteps = 5;       // steps that a sign has to hold
constexpr int kFirstSteps = 3;  // steps that define the start of a run
constexpr int kLossSteps = 3;   // fewer, because the loss has wide thresholds

constexpr double kTruncatedShare = 0.5;      // of responses
constexpr double kEqualGroupsShare = 0.9;    // of prompts
constexpr double kEntropyLeft = 0.1;         // as a fraction of the start
constexpr double kLengthLeft = 0.2;          // as a fraction of the start
constexpr double kShortestStart = 16;        // tokens; shorter responses are not checked
constexpr double kLossGrowth = 2;            // as a factor of the start
constexpr double kLeastLossGrowth = 1;       // nats; small losses double by chance
constexpr double kLargestReferenceKl = 0.5;  // nats per token
constexpr double kLargestPolicyKl = 0.1;     // nats per token, within a step

std::optional<double> value_of(const TrainingHealth::Metrics& metrics, const char* name) {
  const auto at = metrics.find(name);
  if (at == metrics.end()) return std::nullopt;
  return at->second;
}

TrainingHealth::Metrics metrics_of(const Json& row) {
  TrainingHealth::Metrics out;
  for (const auto& [name, value] : row.items())
    if (value.is_number()) out[name] = value.get<double>();
  return out;
}

}  // namespace

void TrainingHealth::Start::add(double value) {
  if (steps == kFirstSteps || !std::isfinite(value)) return;
  sum += value;
  least_of_all = steps == 0 ? value : std::min(least_of_all, value);
  ++steps;
}

std::optional<double> TrainingHealth::Start::mean() const {
  if (steps < kFirstSteps) return std::nullopt;
  return sum / steps;
}

std::optional<double> TrainingHealth::Start::least() const {
  if (steps == 0) return std::nullopt;
  return least_of_all;
}

TrainingHealth::TrainingHealth(const spec::Job& job) : job_(job) {
  add_divergence_signs();
  if (!job.trains_policy()) {
    add_loss_sign();
    return;
  }
  add_reward_signs();
  add_collapse_signs();
}

void TrainingHealth::add_divergence_signs() {
  signs_.push_back({"not_finite", 1, [](const Metrics& m) -> std::optional<std::string> {
                      for (const char* name : {"train/loss", "actor/pg_loss", "actor/grad_norm",
                                               "train/grad_norm", "critic/vf_loss"}) {
                        const auto value = value_of(m, name);
                        if (value && !std::isfinite(*value))
                          return format(
                              "{} is {}. Updates whose gradients are not finite are skipped; if "
                              "this goes on, resume from an earlier checkpoint "
                              "(trainer.resume_mode) with a lower learning rate",
                              name, *value);
                      }
                      return std::nullopt;
                    }});
  if (!job_.trains_policy()) return;
  signs_.push_back({"policy_kl", kSteps, [](const Metrics& m) -> std::optional<std::string> {
                      const auto kl = value_of(m, "actor/ppo_kl");
                      if (!kl || !(std::abs(*kl) > kLargestPolicyKl)) return std::nullopt;
                      return format(
                          "A step moves the policy far from the one that sampled: actor/ppo_kl is "
                          "{:.3g} a token. Lower actor_rollout_ref.actor.optim.lr or "
                          "actor_rollout_ref.actor.ppo_epochs",
                          *kl);
                    }});
  signs_.push_back(
      {"reference_kl", kSteps, [](const Metrics& m) -> std::optional<std::string> {
         for (const auto& [name, key] :
              {std::pair("actor/kl_loss", "actor_rollout_ref.actor.kl_loss_coef"),
               std::pair("actor/reward_kl_penalty", "algorithm.kl_ctrl.kl_coef")}) {
           const auto kl = value_of(m, name);
           if (!kl || !(*kl > kLargestReferenceKl)) continue;
           return format(
               "The policy is far from the reference: {} is {:.3g} a token. Raise {}, or lower "
               "actor_rollout_ref.actor.optim.lr; look at the responses in rollouts.jsonl",
               name, *kl, key);
         }
         return std::nullopt;
       }});
}

void TrainingHealth::add_loss_sign() {
  // A loss explodes within the first steps, so their smallest value is used as the start.
  signs_.push_back(
      {"loss", kLossSteps, [this](const Metrics& m) -> std::optional<std::string> {
         const auto loss = value_of(m, "train/loss"), start = loss_.least();
         if (!loss || !start || !(*loss > kLossGrowth * *start + kLeastLossGrowth))
           return std::nullopt;
         return format(
             "The training diverges: train/loss rose from {:.3g} to {:.3g}. Start again, or resume "
             "from an earlier checkpoint (trainer.resume_mode), with a lower "
             "actor_rollout_ref.actor.optim.lr",
             *start, *loss);
       }});
}

void TrainingHealth::add_reward_signs() {
  const auto all_equal = [](const Metrics& m) {
    const auto low = value_of(m, "critic/score/min"), high = value_of(m, "critic/score/max");
    return low && high && *low == *high;
  };
  signs_.push_back(
      {"equal_scores", kSteps, [=](const Metrics& m) -> std::optional<std::string> {
         if (!all_equal(m)) return std::nullopt;
         return format(
             "All responses of a step have the same score, {:.4g}: there is nothing to learn from. "
             "See in rollouts.jsonl whether the reward reads the answers as the model writes them, "
             "and whether the prompts are all too hard or too easy",
             *value_of(m, "critic/score/max"));
       }});
  signs_.push_back(
      {"equal_groups", kSteps, [=](const Metrics& m) -> std::optional<std::string> {
         const auto share = value_of(m, "frac_reward_zero_std");
         if (!share || *share < kEqualGroupsShare || all_equal(m)) return std::nullopt;
         return format(
             "{:.0f} % of the prompts have responses that all score the same and give no gradient. "
             "Take prompts that are neither too hard nor too easy, raise "
             "actor_rollout_ref.rollout.n, or set algorithm.filter_groups.enable = true",
             100 * *share);
       }});
  signs_.push_back(
      {"truncated", kSteps, [this](const Metrics& m) -> std::optional<std::string> {
         const auto share = value_of(m, "response_length/truncated_ratio");
         if (!share || *share < kTruncatedShare) return std::nullopt;
         return format(
             "{:.0f} % of the responses are cut at data.max_response_length ({} tokens) before "
             "their end. Raise it, or add a reward with kind = \"length\"",
             100 * *share, job_.data.max_response_length);
       }});
}

void TrainingHealth::add_collapse_signs() {
  signs_.push_back(
      {"entropy", kSteps, [this](const Metrics& m) -> std::optional<std::string> {
         const auto entropy = value_of(m, "actor/entropy"), start = entropy_.mean();
         if (!entropy || !start || !(*entropy < kEntropyLeft * *start)) return std::nullopt;
         return format(
             "The entropy fell from {:.3g} to {:.3g}: responses hardly differ any more. Raise "
             "actor_rollout_ref.actor.entropy_coeff or clip_ratio_high, keep "
             "actor_rollout_ref.rollout.temperature at 1, or lower the learning rate",
             *start, *entropy);
       }});
  signs_.push_back(
      {"length", kSteps, [this](const Metrics& m) -> std::optional<std::string> {
         const auto length = value_of(m, "response_length/mean"), start = length_.mean();
         if (!length || !start || *start < kShortestStart || !(*length < kLengthLeft * *start))
           return std::nullopt;
         return format(
             "Responses shrank from {:.0f} to {:.0f} tokens. See in rollouts.jsonl whether the "
             "reward prefers short ones; a KL to the reference "
             "(actor_rollout_ref.actor.use_kl_loss) holds against it",
             *start, *length);
       }});
}

void TrainingHealth::begin(const Metrics& metrics) {
  if (const auto entropy = value_of(metrics, "actor/entropy")) entropy_.add(*entropy);
  if (const auto length = value_of(metrics, "response_length/mean")) length_.add(*length);
  if (const auto loss = value_of(metrics, "train/loss")) loss_.add(*loss);
}

std::vector<TrainingHealth::Warning> TrainingHealth::look(const Metrics& metrics) {
  std::vector<Warning> out;
  for (Sign& sign : signs_) {
    const auto text = sign.look(metrics);
    sign.held = text ? sign.held + 1 : 0;
    if (!text || sign.warned || sign.held < sign.steps) continue;
    sign.warned = true;
    out.push_back(
        {sign.name, sign.steps == 1 ? *text : format("{} steps in a row: {}", sign.steps, *text)});
  }
  return out;
}

std::vector<TrainingHealth::Warning> TrainingHealth::note(const Metrics& metrics) {
  begin(metrics);
  return look(metrics);
}

void TrainingHealth::replay(const Json& row) {
  (void)note(metrics_of(row));
}

void TrainingHealth::set_warned(const std::set<std::string>& signs) {
  for (Sign& sign : signs_) sign.warned = signs.contains(sign.name);
}

}  // namespace neap::rlhf
