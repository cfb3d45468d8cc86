// Host memory for a copy of a checkpoint: what it has, when a run wants it, and what a plan says without room.
#include "plan/counting/checkpoint_copy.h"

#include <gtest/gtest.h>

#include "unit/plan/small_plans.h"

namespace neap::plan {
namespace {

Bytes copy_of(const spec::Job& job, const std::vector<TagPlan>& tags) {
  return checkpoint_copy(job, spec::describe(job), tags);
}

TEST(CheckpointCopy, HasTrainedModelsAndTheirStatesWhereverTheyAre) {
  spec::Job job;
  std::vector<TagPlan> tags = ppo(Bytes()).tags;
  EXPECT_EQ(copy_of(job, tags), 600_MiB);
  tags[2].bytes = 10_MiB;  // prefetch buffers
  tags[2].hosted.states = {{"embed", Bytes(), 150_MiB}, {"block.0", Bytes(), 50_MiB}};
  EXPECT_EQ(copy_of(job, tags), 600_MiB);
  tags[0].bytes = 30_MiB;
  TagPlan blocks = tag({spec::TagKind::kBuffers, spec::ModelId::kActor}, 20_MiB, "NN....N",
                       "......w", Contents::kScratch);
  blocks.hosted.blocks = {{"block.0", Bytes(), 70_MiB}};
  tags.push_back(blocks);
  EXPECT_EQ(copy_of(job, tags), 600_MiB);
  job.actor_model.lora.rank = 8;
  tags.push_back(tag({spec::TagKind::kAdapter, spec::ModelId::kActor}, 5_MiB, "NN....N", "......w",
                     Contents::kLive));
  EXPECT_EQ(copy_of(job, tags), 505_MiB);
  job.trainer.save_lora_base = true;
  EXPECT_EQ(copy_of(job, tags), 605_MiB);
}

TEST(CheckpointCopy, IsWantedOnlyIfARunSavesBeforeItsEnd) {
  const std::vector<TagPlan> tags = ppo(Bytes()).tags;
  spec::Job job;
  job.trainer.save_freq = job.trainer.total_training_steps = 20;
  EXPECT_EQ(copy_of(job, tags), 0_B);
  job.trainer.total_training_steps = 21;
  EXPECT_EQ(copy_of(job, tags), 600_MiB);
  job.trainer.async_save = false;
  EXPECT_EQ(copy_of(job, tags), 0_B);
  job.trainer.async_save = true;
  job.trainer.n_gpus_per_node = 2;
  EXPECT_EQ(copy_of(job, tags), 0_B);
  job.trainer.n_gpus_per_node = 1;
  job.trainer.save_freq = -1;
  EXPECT_EQ(copy_of(job, tags), 0_B);
  job.trainer.best_metric = "val/score/mean";
  EXPECT_EQ(copy_of(job, tags), 600_MiB);
}

TEST(CheckpointCopy, TakesTheHostMemoryThatOffloadedDataLeave) {
  MemoryPlan plan = ppo(410_MiB);
  ASSERT_TRUE(solve_residency(plan, spec::Residency::kAuto).ok());
  ASSERT_GT(plan.host_bytes, 0_B);
  EXPECT_FALSE(plan.copies_checkpoints());
  plan.checkpoint_copy = 600_MiB;
  EXPECT_TRUE(plan.copies_checkpoints()) << "the budget is unlimited";
  plan.host_budget = plan.host_bytes + 600_MiB;
  EXPECT_EQ(plan.to_json()["checkpoint_copy_bytes"], (600_MiB).count());
  EXPECT_EQ(plan.to_text().find("checkpoints "), std::string::npos);
  plan.host_budget -= 1_B;
  EXPECT_EQ(plan.to_json()["checkpoint_copy_bytes"], 0);
  EXPECT_NE(plan.to_text().find("training waits while they are written: a copy needs up to "
                                "600 MiB more host memory"),
            std::string::npos)
      << plan.to_text();
}

}  // namespace
}  // namespace neap::plan
