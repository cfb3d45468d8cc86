// Jobs from text in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "spec/job/job.h"

namespace neap::spec {

class JobFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("neap_job_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Status load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(folder_ / "job.toml") << text;
    job_ = Job{};
    return Job::load(folder_ / "job.toml", overrides, job_);
  }
  std::string error(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load(text, overrides).message();
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  std::filesystem::path folder_;
  Job job_;
};

inline constexpr const char* kPadded = "actor_rollout_ref.actor.use_dynamic_bsz=false";

inline constexpr const char* kPpo = R"(
task = "ppo"
[actor_rollout_ref.model]
path = "models/actor"
[reward_model.model]
path = "models/reward"
)";

inline constexpr const char* kRules = R"(
task = "grpo"
actor_rollout_ref.model.path = "a"
actor_rollout_ref.rollout.n = 4
[[reward.functions]]
kind = "numeric"
weight = 2
[[reward.functions]]
kind = "regex"
name = "polite"
pattern = "please"
)";

}  // namespace neap::spec
