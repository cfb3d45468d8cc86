#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spec/job/job.h"
#include "spec/recipe/recipe.h"

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
  EXPECT_EQ(job.sequences_per_rank(job.main_model()), 6);
  EXPECT_EQ(job.generation_mesh().line(3, Axis::kTensor), (std::vector<std::int64_t>{2, 3}));
}

TEST(GenerationPlacement, PartsOfAnotherSizeAreSpreadOverAllRanks) {
  const auto places = [](const std::vector<std::string>& more) {
    Job job;
    EXPECT_TRUE(load(more, job).ok());
    EXPECT_TRUE(job.has_generation_placement());
    return job.generating_ranks();
  };
  const std::string tensor = "parallel.tensor_model_parallel_size=";
  EXPECT_EQ(places({kSize + "1", tensor + "2"}), 4);
  EXPECT_EQ(places({kSize + "4", tensor + "2"}), 1);
  EXPECT_EQ(places({kSize + "2", "parallel.context_parallel_size=2"}), 2);
  EXPECT_EQ(places({kSize + "4", "parallel.pipeline_model_parallel_size=2"}), 1);
}

TEST(GenerationPlacement, StreamedBlocksComeFromTheHostToTheirPlacesToGenerate) {
  const std::vector<std::vector<std::string>> ways = {
      {}, {kSize + "2"}, {kSize + "1", "parallel.tensor_model_parallel_size=2"}};
  for (const std::vector<std::string>& more : ways) {
    std::vector<std::string> keys = {"actor_rollout_ref.model.lora_rank=4"};
    keys.insert(keys.end(), more.begin(), more.end());
    Job job;
    EXPECT_TRUE(load(keys, job).ok());
    const std::vector<ModelId> models = streamable(describe(job));
    EXPECT_NE(std::find(models.begin(), models.end(), ModelId::kActor), models.end());
    EXPECT_NE(std::find(models.begin(), models.end(), ModelId::kReward), models.end());
    StepModes modes;
    modes.of(ModelId::kActor).layers = Home::kHost;
    const Recipe recipe = describe(job, modes);
    const Phase& phase = *recipe.find(Body::kGenerate);
    EXPECT_TRUE(phase.storage.streams_layers() && phase.gathers_weights);
    const auto needs = [&](TagKind kind) {
      return std::find(phase.needs.begin(), phase.needs.end(), TagId{kind, ModelId::kActor}) !=
             phase.needs.end();
    };
    EXPECT_TRUE(needs(TagKind::kBlocks));
    EXPECT_FALSE(needs(TagKind::kBuffers));
  }
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
  EXPECT_THAT(refusal({kSize + "3", "parallel.zero_stage=3"}),
              HasSubstr("tensor_model_parallel_size 3 does not divide the 4 ranks"));
  EXPECT_THAT(refusal({kSize + "1", "parallel.tensor_model_parallel_size=2",
                       "data.train_batch_size=6", "actor_rollout_ref.actor.ppo_mini_batch_size=6"}),
              HasSubstr("data.train_batch_size 6 cannot be shared by 4 ranks"));
}

}  // namespace
}  // namespace neap::spec
