// Models of a job that ranks divide each in its own way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "spec/job/job.h"
#include "spec/ranks/rank_kinds.h"
#include "spec/recipe/recipe.h"

namespace neap::spec {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Status load_job(std::vector<std::string> keys, Job& job, const char* task = "ppo") {
  if (std::string(task) == "ppo")
    keys.insert(keys.begin(), {"reward_model.model.path=judge", "algorithm.use_kl_in_reward=true",
                               "actor_rollout_ref.actor.ppo_mini_batch_size=8"});
  keys.insert(keys.begin(), {std::string("task=") + task, "actor_rollout_ref.model.path=model",
                             "data.train_batch_size=16", "trainer.n_gpus_per_node=8",
                             "actor_rollout_ref.rollout.n=2"});
  return Job::load({}, keys, job);
}

TEST(ModelPlacement, ModelsAreDividedAsTheJobUnlessTheirKeysSayOtherwise) {
  Job job;
  const Status status = load_job(
      {"parallel.zero_stage=1", "parallel.tensor_model_parallel_size=2", "critic.zero_stage=3",
       "critic.zero_shard_size=2", "actor_rollout_ref.ref.zero_stage=0",
       "actor_rollout_ref.ref.tensor_model_parallel_size=8",
       "reward_model.tensor_model_parallel_size=1"},
      job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(job.models(), ElementsAre(ModelId::kActor, ModelId::kReference, ModelId::kCritic,
                                        ModelId::kReward));
  EXPECT_FALSE(job.places_models_alike());
  const auto expect = [&](ModelId model, std::int64_t tensor, std::int64_t data, std::int64_t stage,
                          std::int64_t replicas) {
    const DataParallel ranks = job.data_parallel(model);
    EXPECT_EQ(job.mesh(model).size(Axis::kTensor), tensor) << to_string(model);
    EXPECT_EQ(job.data_ranks(model), data) << to_string(model);
    EXPECT_EQ(ranks.zero_stage, stage) << to_string(model);
    EXPECT_EQ(ranks.replicas, replicas) << to_string(model);
    EXPECT_EQ(job.sequences_per_rank(model), 32 / data) << to_string(model);
  };
  expect(ModelId::kActor, 2, 4, 1, 1);
  expect(ModelId::kReference, 8, 1, 0, 1);
  expect(ModelId::kCritic, 2, 4, 3, 2);
  expect(ModelId::kReward, 1, 8, 1, 1);
  EXPECT_EQ(job.mesh().size(Axis::kTensor), 2);
  // Rows of updates and of phases are those of their model's ranks.
  EXPECT_EQ(update_shape(job, Body::kPolicyUpdate).mini_batch, 4);
  const Recipe recipe = describe(job);
  EXPECT_EQ(batching_of(job, *recipe.find(PhaseId::kReferenceLogProbs)).most_rows, 32);
  EXPECT_EQ(batching_of(job, *recipe.find(PhaseId::kRewards)).most_rows, 4);
  for (const ModelSource& model : recipe.models) {
    EXPECT_EQ(model.storage.shards_weights, model.id == ModelId::kCritic) << to_string(model.id);
    EXPECT_EQ(model.storage.shards_gradients, model.id == ModelId::kCritic) << to_string(model.id);
  }
}

TEST(ModelPlacement, TheMainModelsKeysAreTheActors) {
  for (const char* task : {"sft", "reward", "dpo"}) {
    Job job;
    const Status status = load_job({"actor_rollout_ref.actor.zero_stage=2",
                                    "actor_rollout_ref.actor.tensor_model_parallel_size=4"},
                                   job, task);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(job.data_parallel().zero_stage, 2) << task;
    EXPECT_EQ(job.data_ranks(), 2) << task;
    EXPECT_EQ(job.placement(ModelId::kReference).zero_stage, 0) << task;
  }
}

TEST(ModelPlacement, SlicesOfOneModelAreThoseOfItsRanks) {
  Job job;
  ASSERT_TRUE(load_job({"actor_rollout_ref.actor.zero_stage=3", "parallel.zero_shard_size=4",
                        "critic.zero_stage=1", "critic.zero_shard_size=8"},
                       job)
                  .ok());
  EXPECT_EQ(job.mesh().size(Axis::kShards), 4);
  EXPECT_EQ(job.mesh(ModelId::kCritic).size(Axis::kShards), 8);
  EXPECT_EQ(job.mesh(ModelId::kReward).size(Axis::kShards), 8);  // nothing of it is sliced
  EXPECT_TRUE(job.warnings.empty()) << job.warnings.front();
}

TEST(ModelPlacement, OtherRanksMayDivideTheSequencesOfAModel) {
  Job job;
  const Status status =
      load_job({"critic.context_parallel_size=4", "critic.ppo_max_token_len_per_gpu=512",
                "data.max_prompt_length=1024", "data.max_response_length=1024",
                "parallel.context_parallel_size=2", "reward_model.context_parallel_size=1",
                "parallel.cp_comm_type=p2p"},
               job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(job.data_ranks(), 4);
  EXPECT_EQ(job.data_ranks(ModelId::kCritic), 2);
  EXPECT_EQ(job.data_ranks(ModelId::kReward), 8);
  EXPECT_EQ(job.data_parallel(ModelId::kCritic).ranks, 8);
  EXPECT_TRUE(job.context_shard(ModelId::kCritic).ring);
  EXPECT_FALSE(job.context_shard(ModelId::kReward).ring);
  EXPECT_EQ(job.generating_ranks(), 8);
  // Budgets are those of a rank, and each model's ranks fill theirs together.
  const Recipe recipe = describe(job);
  EXPECT_EQ(batching_of(job, *recipe.find(PhaseId::kTrainCritic)).tokens, 4 * 512);
  const std::int64_t actors = job.actor.ppo_max_token_len_per_gpu;
  EXPECT_EQ(batching_of(job, *recipe.find(PhaseId::kTrainActor)).tokens, 2 * actors);
  EXPECT_EQ(batching_of(job, *recipe.find(PhaseId::kRewards)).tokens, actors);
  // A row of 2048 tokens is one for as many ranks as divide it.
  EXPECT_THAT(load_job({"critic.context_parallel_size=2", "critic.ppo_max_token_len_per_gpu=512",
                        "data.max_prompt_length=1024", "data.max_response_length=1024"},
                       job)
                  .message(),
              HasSubstr("critic.ppo_max_token_len_per_gpu is 512; it has to be at least 1024"));
  EXPECT_THAT(load_job({"parallel.context_parallel_size=2", "reward_model.context_parallel_size=1",
                        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024",
                        "data.max_prompt_length=1024", "data.max_response_length=1024"},
                       job)
                  .message(),
              HasSubstr("actor_rollout_ref.actor.ppo_max_token_len_per_gpu is 1024; it has to be "
                        "at least 2048"));
}

TEST(ModelPlacement, RowsAndKeysOfAModelAreDividedAsItsOwnKeysSay) {
  Job job;
  ASSERT_TRUE(load_job({"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
                        "critic.sequence_parallel=false", "reward_model.sequence_parallel=true",
                        "actor_rollout_ref.ref.tensor_model_parallel_size=1"},
                       job)
                  .ok());
  EXPECT_TRUE(job.divides_rows(ModelId::kActor));
  EXPECT_TRUE(job.divides_rows(ModelId::kReward));
  EXPECT_FALSE(job.divides_rows(ModelId::kCritic));
  EXPECT_FALSE(job.divides_rows(ModelId::kReference));
  EXPECT_TRUE(job.warnings.empty()) << job.warnings.front();
  EXPECT_EQ(job.bind().find("critic.sequence_parallel")->read(), false);
  EXPECT_EQ(job.bind().find("actor_rollout_ref.actor.sequence_parallel")->read(), "");
  Job other;
  ASSERT_TRUE(
      load_job({"parallel.context_parallel_size=2", "critic.cp_comm_type=p2p",
                "critic.sequence_parallel=true", "actor_rollout_ref.ref.context_parallel_size=1",
                "actor_rollout_ref.ref.cp_comm_type=p2p"},
               other)
          .ok());
  EXPECT_TRUE(other.context_shard(ModelId::kCritic).ring);
  EXPECT_FALSE(other.context_shard(ModelId::kActor).ring);
  EXPECT_FALSE(other.context_shard(ModelId::kReference).ring);
  // Of keys that say nothing of their model.
  ASSERT_EQ(other.warnings.size(), 2U);
  EXPECT_THAT(other.warnings[0] + other.warnings[1],
              AllOf(HasSubstr("actor_rollout_ref.ref.cp_comm_type"),
                    HasSubstr("one rank has all tokens of a sequence"),
                    HasSubstr("critic.sequence_parallel"),
                    HasSubstr("one rank has all of its hidden states")));
  // Alike but for keys that say nothing.
  Job alike;
  ASSERT_TRUE(load_job({"critic.cp_comm_type=all_gather", "parallel.sequence_parallel=true",
                        "parallel.tensor_model_parallel_size=2", "critic.sequence_parallel=true"},
                       alike)
                  .ok());
  EXPECT_TRUE(alike.places_models_alike());
  EXPECT_FALSE(other.places_models_alike());
}

TEST(ModelPlacement, EachModelHasItsOwnStages) {
  Job job;
  const Status status = load_job(
      {"parallel.pipeline_model_parallel_size=4", "parallel.tensor_model_parallel_size=2",
       "parallel.pipeline_model_parallel_layout=[1,2,2,1]", "critic.pipeline_model_parallel_size=2",
       "critic.pipeline_model_parallel_layout=[2,4]", "reward_model.pipeline_model_parallel_size=1",
       "reward_model.tensor_model_parallel_size=1"},
      job);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(job.warnings.empty()) << job.warnings.front();
  EXPECT_EQ(job.mesh().size(Axis::kPipe), 4);
  EXPECT_EQ(job.data_ranks(), 1);
  EXPECT_EQ(job.mesh(ModelId::kCritic).size(Axis::kPipe), 2);
  EXPECT_EQ(job.data_ranks(ModelId::kCritic), 2);
  EXPECT_EQ(job.mesh(ModelId::kReward).size(Axis::kPipe), 1);
  EXPECT_EQ(job.data_ranks(ModelId::kReward), 8);
  const auto layout = [&](ModelId model) {
    return job.placement(model).pipeline_model_parallel_layout;
  };
  EXPECT_THAT(layout(ModelId::kReference), ElementsAre(1, 2, 2, 1));
  EXPECT_THAT(layout(ModelId::kCritic), ElementsAre(2, 4));
  EXPECT_THAT(layout(ModelId::kReward), ElementsAre());
  EXPECT_FALSE(job.places_models_alike());
  EXPECT_TRUE(job.has_stages());
  // Only models that are not the main one have stages: the schedule is read.
  Job frozen;
  ASSERT_TRUE(load_job({"reward_model.pipeline_model_parallel_size=2",
                        "parallel.virtual_pipeline_model_parallel_size=2",
                        "critic.pipeline_model_parallel_layout=[2,4]"},
                       frozen)
                  .ok());
  EXPECT_TRUE(frozen.has_stages());
  ASSERT_EQ(frozen.warnings.size(), 1U);
  EXPECT_THAT(frozen.warnings[0], HasSubstr("critic.pipeline_model_parallel_layout"));
  // A backward in two parts is a matter of models with stages.
  Job whole;
  EXPECT_TRUE(load_job({"actor_rollout_ref.actor.pipeline_model_parallel_size=2",
                        "parallel.pipeline_parallel_schedule=zero_bubble", "critic.zero_stage=3"},
                       whole)
                  .ok());
}

TEST(ModelPlacement, RanksWithTheSameStagesOfAllModelsAreAlike) {
  const auto mesh = [](std::int64_t stages) {
    return Mesh().set(Axis::kPipe, stages).set(Axis::kData, 12 / stages);
  };
  EXPECT_THAT(rank_kinds({mesh(1), mesh(1)}), ElementsAre(RankKind{0, 12}));
  EXPECT_THAT(rank_kinds({mesh(2), mesh(1), mesh(2)}), ElementsAre(RankKind{0, 6}, RankKind{6, 6}));
  const std::vector<RankKind> kinds = rank_kinds({mesh(2), mesh(3)});
  EXPECT_THAT(kinds, ElementsAre(RankKind{0, 4}, RankKind{4, 2}, RankKind{6, 2}, RankKind{8, 4}));
  EXPECT_TRUE(are_stages(rank_kinds({mesh(2), mesh(2)}), {mesh(2), mesh(2)}));
  // As many kinds as the first model has stages, but the second has none.
  EXPECT_FALSE(are_stages(rank_kinds({mesh(2), mesh(1)}), {mesh(2), mesh(1)}));
  EXPECT_EQ(kind_of(kinds, 0), 0U);
  EXPECT_EQ(kind_of(kinds, 5), 1U);
  EXPECT_EQ(kind_of(kinds, 6), 2U);
  EXPECT_EQ(kind_of(kinds, 11), 3U);
}

TEST(ModelPlacement, WhatDoesNotFitIsRefusedWithTheKey) {
  const auto refused = [](std::vector<std::string> keys) {
    Job job;
    return load_job(std::move(keys), job).message();
  };
  EXPECT_THAT(refused({"critic.tensor_model_parallel_size=3"}),
              HasSubstr("critic.tensor_model_parallel_size 3 does not divide the 8 ranks"));
  EXPECT_THAT(refused({"reward_model.zero_stage=3", "reward_model.zero_shard_size=3"}),
              HasSubstr("reward_model.zero_shard_size 3 does not divide the 8 ranks"));
  EXPECT_THAT(refused({"actor_rollout_ref.ref.tensor_model_parallel_size=8",
                       "parallel.pipeline_model_parallel_size=2"}),
              HasSubstr("actor_rollout_ref.ref.tensor_model_parallel_size times "
                        "parallel.pipeline_model_parallel_size, 16 does not divide"));
  // A batch is shared by the ranks of every model.
  EXPECT_THAT(
      refused({"parallel.tensor_model_parallel_size=8", "data.train_batch_size=12",
               "actor_rollout_ref.actor.ppo_mini_batch_size=12", "critic.ppo_mini_batch_size=12",
               "reward_model.tensor_model_parallel_size=1"}),
      HasSubstr("data.train_batch_size 12 cannot be shared by 8 ranks"));
}

TEST(ModelPlacement, KeysOfModelsThatAreNotThereAreNotRead) {
  Job job;
  ASSERT_TRUE(
      load_job({"actor_rollout_ref.ref.zero_stage=3", "actor_rollout_ref.model.lora_rank=4"}, job)
          .ok());
  ASSERT_EQ(job.warnings.size(), 1U);
  EXPECT_THAT(job.warnings[0], HasSubstr("the reference is the actor's base"));
}

}  // namespace
}  // namespace neap::spec
