// CONTRIBUTING.md, "To add an architecture": architectures/recipe_sample.cpp is one more file, and
// nothing else of the program is changed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "plan/results/memory_plan.h"
#include "spec/model/architecture_file.h"
#include "spec/model/layout.h"

namespace neap {
namespace {

class ArchitectureRecipe : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "neap-recipe-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ASSERT_TRUE(write_file_atomic(folder_ / "config.json",
                                  R"({"model_type":"recipe_sample","num_hidden_layers":2})")
                    .ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(ArchitectureRecipe, TheFileIsRegisteredAndRead) {
  EXPECT_NE(spec::find_architecture_file("recipe_sample"), nullptr);
  EXPECT_NE(spec::find_architecture_file("llama"), nullptr);
  const auto a = spec::Architecture::from_folder(folder_);
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_TRUE(a->parallel_residual);
  EXPECT_EQ(a->num_hidden_layers, 2);
  EXPECT_EQ(a->rotary.dimensions, 4);
  EXPECT_EQ(a->window_of(0), 5);
  EXPECT_EQ(a->window_of(1), 0);
  EXPECT_EQ(a->to_json()["architectures"][0], "RecipeSampleForCausalLM");
  for (const spec::FlatUnit& unit : spec::flat_layout(*a, spec::Head::kLanguageModel)) {
    for (const spec::Parameter& p : unit.parameters) EXPECT_TRUE(p.name.ends_with(".weight"));
  }
  EXPECT_EQ(spec::block_prefix(*a, 1), "model.layers.1");
}

TEST_F(ArchitectureRecipe, EveryTaskIsPlannedForIt) {
  using spec::Task;
  for (const Task task : {Task::kSft, Task::kReward, Task::kPpo, Task::kGrpo}) {
    for (const bool cuda : {false, true}) {
      spec::Job job;
      job.task = task;
      job.actor_model.path = job.reward_model.path = folder_.string();
      job.actor.use_kl_loss = true;
      job.data.max_prompt_length = 16;  // the model has 64 positions
      job.data.max_response_length = 48;
      job.algorithm.adv_estimator =
          task == Task::kGrpo ? spec::AdvantageEstimator::kGrpo : spec::AdvantageEstimator::kGae;
      plan::Target target;
      target.cuda = cuda;
      const auto plan = plan::make_plan(job, target);
      ASSERT_TRUE(plan.ok()) << to_string(task) << ": " << plan.status().message();
      for (const plan::PhasePlan& phase : plan->phases)
        EXPECT_FALSE(phase.transient_allocated.is_zero()) << to_string(task) << " " << phase.name();
    }
  }
}

}  // namespace
}  // namespace neap
