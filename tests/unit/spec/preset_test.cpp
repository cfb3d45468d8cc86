// algorithm.preset: values of other systems, beneath what a job sets itself.
#include "spec/types/presets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "spec/job/job.h"

namespace neap::spec {
namespace {

class PresetJob : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              format("neap-preset-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Status load(std::string_view task, std::string_view preset,
              const std::vector<std::string>& overrides = {}) {
    std::ofstream(folder_ / "job.toml")
        << format("task = \"{}\"\nalgorithm.preset = \"{}\"\n", task, preset)
        << "actor_rollout_ref.model.path = \"m\"\nreward_model.model.path = \"r\"\n"
        << "actor_rollout_ref.rollout.n = 2\n";
    job_ = Job{};
    return Job::load(folder_ / "job.toml", overrides, job_);
  }
  std::filesystem::path folder_;
  Job job_;
};

// Every value of every system reaches the field that its key is bound to.
TEST_F(PresetJob, SetEveryEntry) {
  for (std::size_t system = 0; system < kPresetNames.size(); ++system) {
    for (const PresetEntry& entry : preset_entries()) {
      for (const Task task : entry.tasks) {
        SCOPED_TRACE(format("{} {} {}", kPresetNames[system], to_string(task), entry.key));
        if (entry.values[system].empty()) continue;
        std::vector<std::string> overrides;
        if (entry.estimator)
          overrides.push_back(format("algorithm.adv_estimator={}", to_string(*entry.estimator)));
        ASSERT_TRUE(load(to_string(task), kPresetNames[system], overrides).ok());
        const Json got = job_.bind().find(entry.key)->read();
        // The same value through the command line.
        Job other;
        ConfigTable table = other.bind();
        ASSERT_TRUE(table.apply_override(format("{}={}", entry.key, entry.values[system])).ok());
        EXPECT_EQ(got, table.find(entry.key)->read());
      }
    }
  }
}

TEST_F(PresetJob, LeaveWhatTheJobSets) {
  ASSERT_TRUE(load("ppo", "trl").ok());
  EXPECT_EQ(job_.algorithm.lam, 0.95);
  EXPECT_EQ(job_.actor.clip_ratio_c, 0);
  EXPECT_TRUE(job_.algorithm.use_kl_in_reward);
  ASSERT_TRUE(load("ppo", "trl", {"algorithm.lam=1.0", "algorithm.use_kl_in_reward=false"}).ok());
  EXPECT_EQ(job_.algorithm.lam, 1);
  EXPECT_FALSE(job_.algorithm.use_kl_in_reward);
  ASSERT_TRUE(load("ppo", "").ok());
  EXPECT_EQ(job_.actor.clip_ratio_c, 3);
}

TEST_F(PresetJob, DependOnTheEstimator) {
  ASSERT_TRUE(load("grpo", "trl").ok());
  EXPECT_FALSE(job_.algorithm.use_kl_in_reward);
  EXPECT_EQ(job_.algorithm.norm_adv_eps, 1e-4);
  ASSERT_TRUE(load("grpo", "trl", {"algorithm.adv_estimator=rloo"}).ok());
  EXPECT_TRUE(job_.algorithm.use_kl_in_reward);
  EXPECT_EQ(job_.algorithm.kl_coef, 0.05);
}

TEST_F(PresetJob, RefuseUnknownNames) {
  EXPECT_FALSE(load("ppo", "TRL").ok());
  ConfigTable table = job_.bind();
  EXPECT_NE(
      apply_preset(table, "x", Task::kPpo, AdvantageEstimator::kGae).message().find("openrlhf"),
      std::string::npos);
}

TEST_F(PresetJob, DualClipIsOffOrAtLeastOne) {
  ASSERT_TRUE(load("ppo", "", {"actor_rollout_ref.actor.clip_ratio_c=0"}).ok());
  EXPECT_FALSE(load("ppo", "", {"actor_rollout_ref.actor.clip_ratio_c=0.5"}).ok());
}

TEST_F(PresetJob, RobustDpoNeedsLabelsThatAreMostlyRight) {
  ASSERT_TRUE(load("dpo", "", {"dpo.loss_type=robust", "dpo.label_smoothing=0.4"}).ok());
  EXPECT_FALSE(load("dpo", "", {"dpo.loss_type=robust", "dpo.label_smoothing=0.5"}).ok());
  EXPECT_TRUE(load("dpo", "", {"dpo.loss_type=sigmoid", "dpo.label_smoothing=0.5"}).ok());
}

}  // namespace
}  // namespace neap::spec
