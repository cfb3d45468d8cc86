#include "rlhf/trainer/training_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace neap::rlhf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Metrics = TrainingHealth::Metrics;

Metrics healthy() {
  return {{"critic/score/min", 0},       {"critic/score/max", 1},
          {"frac_reward_zero_std", 0.3}, {"response_length/truncated_ratio", 0.1},
          {"response_length/mean", 100}, {"actor/entropy", 1},
          {"actor/ppo_kl", 0.001},       {"actor/kl_loss", 0.01},
          {"actor/pg_loss", 0.1}};
}

class TrainingHealthTest : public testing::Test {
 protected:
  TrainingHealthTest() { job.task = spec::Task::kGrpo; }

  // The signs of `count` steps.
  std::vector<std::string> signs(TrainingHealth& health, const Metrics& metrics, int count) {
    std::vector<std::string> out;
    for (int i = 0; i < count; ++i) {
      for (const TrainingHealth::Warning& warning : health.note(metrics)) {
        out.push_back(warning.sign);
        texts.push_back(warning.text);
      }
    }
    return out;
  }
  std::vector<std::string> signs_of(const std::string& name, double value) {
    TrainingHealth health(job);
    EXPECT_THAT(signs(health, healthy(), 10), IsEmpty());
    Metrics metrics = healthy();
    metrics[name] = value;
    return signs(health, metrics, 30);
  }

  spec::Job job;
  std::vector<std::string> texts;
};

TEST_F(TrainingHealthTest, WarnsOnceOfEachSign) {
  EXPECT_THAT(signs_of("critic/score/max", 0), ElementsAre("equal_scores"));
  EXPECT_THAT(signs_of("frac_reward_zero_std", 0.95), ElementsAre("equal_groups"));
  EXPECT_THAT(signs_of("response_length/truncated_ratio", 0.7), ElementsAre("truncated"));
  EXPECT_THAT(texts.back(), HasSubstr("70 % of the responses are cut at data.max_response_length"));
  EXPECT_THAT(signs_of("actor/entropy", 0.05), ElementsAre("entropy"));
  EXPECT_THAT(signs_of("response_length/mean", 10), ElementsAre("length"));
  EXPECT_THAT(signs_of("actor/ppo_kl", 0.5), ElementsAre("policy_kl"));
  EXPECT_THAT(signs_of("actor/kl_loss", 2), ElementsAre("reference_kl"));
  EXPECT_THAT(signs_of("actor/pg_loss", std::nan("")), ElementsAre("not_finite"));
}

TEST_F(TrainingHealthTest, ASignHasToHoldForSeveralSteps) {
  TrainingHealth health(job);
  Metrics bad = healthy();
  bad["response_length/truncated_ratio"] = 1;
  for (int round = 0; round < 5; ++round) {
    EXPECT_THAT(signs(health, bad, 4), IsEmpty());
    EXPECT_THAT(signs(health, healthy(), 1), IsEmpty());
  }
  EXPECT_THAT(signs(health, bad, 5), ElementsAre("truncated"));
  EXPECT_THAT(texts.back(), HasSubstr("5 steps in a row: "));
}

TEST_F(TrainingHealthTest, EqualScoresAreNotEqualGroups) {
  TrainingHealth health(job);
  Metrics bad = healthy();
  bad["critic/score/max"] = bad["critic/score/min"] = 0;
  bad["frac_reward_zero_std"] = 1;
  EXPECT_THAT(signs(health, bad, 20), ElementsAre("equal_scores"));
}

TEST_F(TrainingHealthTest, AResumedRunKnowsHowItBeganAndWhatWasSaid) {
  TrainingHealth health(job);
  for (int step = 1; step <= 6; ++step) {
    Json row = {{"step", step}};
    for (const auto& [name, value] : healthy()) row[name] = value;
    row["response_length/truncated_ratio"] = 1;
    row["critic/score/std"] = nullptr;
    health.replay(row);
  }
  health.set_warned({"truncated"});
  Metrics bad = healthy();
  bad["response_length/truncated_ratio"] = 1;
  bad["actor/entropy"] = 0.01;
  EXPECT_THAT(signs(health, bad, 10), ElementsAre("entropy"));
  EXPECT_THAT(texts.back(), HasSubstr("from 1 to 0.01"));
}

TEST_F(TrainingHealthTest, WarnsOfALossThatDiverges) {
  for (const spec::Task task : {spec::Task::kSft, spec::Task::kDpo, spec::Task::kReward}) {
    job.task = task;
    TrainingHealth health(job);
    std::vector<std::string> found;
    for (const double loss : {2.0, 40.0, 900.0, 3600.0, 3600.0})
      for (const std::string& sign : signs(health, {{"train/loss", loss}}, 1))
        found.push_back(sign);
    EXPECT_THAT(found, ElementsAre("loss"));
    EXPECT_THAT(texts.back(), HasSubstr("train/loss rose from 2 to 3.6e+03"));
    EXPECT_THAT(texts.back(), HasSubstr("actor_rollout_ref.actor.optim.lr"));
  }
}

TEST_F(TrainingHealthTest, ALossThatOnlyVariesIsNoSign) {
  job.task = spec::Task::kSft;
  TrainingHealth health(job);
  for (int round = 0; round < 5; ++round) {
    for (const double loss : {0.2, 0.9, 0.5, 0.7})
      EXPECT_THAT(signs(health, {{"train/loss", loss}}, 1), IsEmpty());
    EXPECT_THAT(signs(health, {{"train/loss", 4}}, 2), IsEmpty());
  }
  job.task = spec::Task::kGrpo;
  TrainingHealth other(job);
  EXPECT_THAT(signs(other, {{"train/loss", 0.1}}, 3), IsEmpty());
  EXPECT_THAT(signs(other, {{"train/loss", 10}}, 10), IsEmpty());
}

TEST_F(TrainingHealthTest, OtherTasksHaveALossOnly) {
  job.task = spec::Task::kSft;
  EXPECT_THAT(signs_of("response_length/truncated_ratio", 1), IsEmpty());
  EXPECT_THAT(signs_of("train/loss", INFINITY), ElementsAre("not_finite"));
  EXPECT_THAT(signs_of("train/loss", std::nan("")), ElementsAre("not_finite"));
}

}  // namespace
}  // namespace neap::rlhf
