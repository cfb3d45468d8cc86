#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spec/job.h"
#include "spec/recipe.h"

namespace neap::spec {
namespace {

using ::testing::HasSubstr;

const std::string kSize = "actor_rollout_ref.rollout.tensor_model_parallel_size=";

Status load(const std::vector<std::string>& more, Job& job) {
  std::vector<std::string> keys = {"task=grpo",
                                   "actor_rollout_ref.model.path=model",
                                   "reward_model.model.path=model",
                                   "data.train_batch_size=8",
                                   "actor_rollout_ref.actor.ppo_mini_batch_size=8",
                                   "actor_rollout_ref.rollout.n=3",
                                   "actor_rollout_ref.rollout.batch_size=0",
                                   "trainer.n_gpus_per_node=4"};
  keys.insert(keys.end(), more.begin(), more.end());
  return Job::load({}, keys, job);
}

TEST(GenerationPlacement, RanksAnswerThePromptsOfAllThatDivideTheModel) {
  Job job;
  ASSERT_TRUE(load({kSize + "2", "parallel.zero_stage=3"}, job).ok());
  EXPECT_TRUE(job.has_generation_placement());
  EXPECT_EQ(job.data_ranks(), 4);
  EXPECT_EQ(job.generating_ranks(), 2);
  EXPECT_EQ(job.prompts_per_rank(), 4);
  EXPECT_EQ(job.rollout_batch(), 12);
  EXPECT_EQ(job.sequences_per_rank(), 6);
  EXPECT_EQ(job.generation_mesh().line(3, Axis::kTensor), (std::vector<std::int64_t>{2, 3}));
}

TEST(GenerationPlacement, WholeUnitsPassTheSlotsInThePhasesThatGenerate) {
  const auto slots_in = [](const std::vector<std::string>& more, Body body) {
    Job job;
    EXPECT_TRUE(load(more, job).ok());
    const Recipe recipe = describe(job);
    const std::vector<TagId>& needs = recipe.find(body)->needs;
    const TagId slots{TagKind::kBuffers, ModelId::kActor};
    return std::find(needs.begin(), needs.end(), slots) != needs.end();
  };
  EXPECT_TRUE(slots_in({kSize + "2", "parallel.zero_stage=3"}, Body::kGenerate));
  EXPECT_FALSE(slots_in({"parallel.zero_stage=3"}, Body::kGenerate));
  EXPECT_TRUE(slots_in({kSize + "2", "parallel.zero_stage=3"}, Body::kPolicyUpdate));
}

TEST(GenerationPlacement, TheSizeOfTrainingIsNone) {
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{kSize + "1"},
        {kSize + "0"},
        {kSize + "2", "parallel.tensor_model_parallel_size=2"}}) {
    Job job;
    ASSERT_TRUE(load(keys, job).ok());
    EXPECT_FALSE(job.has_generation_placement());
  }
}

TEST(GenerationPlacement, OthersAreRefused) {
  const auto refusal = [](const std::vector<std::string>& more) {
    Job job;
    return load(more, job).message();
  };
  EXPECT_THAT(
      refusal({kSize + "2"}),
      HasSubstr("does not go with parallel.zero_stage 0: every rank has the whole weights"));
  EXPECT_THAT(refusal({kSize + "3", "parallel.zero_stage=3"}),
              HasSubstr("tensor_model_parallel_size 3 does not divide the 4 ranks"));
  EXPECT_THAT(refusal({kSize + "1", "parallel.tensor_model_parallel_size=2"}),
              HasSubstr("does not go with parallel.tensor_model_parallel_size 2"));
  EXPECT_THAT(refusal({kSize + "2", "parallel.context_parallel_size=2", "parallel.zero_stage=3"}),
              HasSubstr("does not go with parallel.context_parallel_size 2"));
}

}  // namespace
}  // namespace neap::spec
