// What keys of a job say about batches and lengths, and what stands for those that nobody set.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "spec/recipe/recipe.h"
#include "unit/spec/job_file.h"

namespace neap::spec {
namespace {

TEST_F(JobFile, ZeroStandsForAnotherKey) {
  ASSERT_TRUE(load(kPpo, {"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"}).ok());
  EXPECT_EQ(job_.reference_micro_batch(), 4);
  EXPECT_EQ(job_.reward_micro_batch(), 4);
  EXPECT_EQ(job_.values_micro_batch(), 8);
  EXPECT_EQ(job_.rollout_batch(), 64);
  ASSERT_TRUE(load(kPpo, {"actor_rollout_ref.rollout.batch_size=16"}).ok());
  EXPECT_EQ(job_.rollout_batch(), 16);
}

TEST_F(JobFile, BudgetsHoldTheLongestSequence) {
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string packs = actor + "use_dynamic_bsz=true";
  // The number of padded sequences has no part in it.
  EXPECT_EQ(error(kPpo, {packs, actor + "ppo_micro_batch_size_per_gpu=7"}), "ok");
  const auto budgets = [&](const std::vector<std::string>& overrides) {
    EXPECT_TRUE(load(kPpo, overrides).ok());
    std::vector<std::int64_t> out;
    for (const Phase& phase : describe(job_).phases) out.push_back(batching_of(job_, phase).tokens);
    return out;
  };
  // generate, actor_logp, ref_logp, values, rewards, train_critic, train_actor
  const std::string kl = "algorithm.use_kl_in_reward=true";
  EXPECT_EQ(budgets({kl, kPadded}), std::vector<std::int64_t>(7, 0));
  EXPECT_EQ(budgets({kl, packs}),
            (std::vector<std::int64_t>{0, 16384, 16384, 32768, 16384, 32768, 16384}));
  EXPECT_EQ(budgets({kl, packs, "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=9000",
                     "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8000",
                     "critic.forward_max_token_len_per_gpu=7000",
                     "reward_model.forward_max_token_len_per_gpu=6000"}),
            (std::vector<std::int64_t>{0, 9000, 8000, 7000, 6000, 32768, 16384}));
  const std::string text = error(kPpo, {packs, actor + "ppo_max_token_len_per_gpu=5"});
  EXPECT_TRUE(has(text, actor + "ppo_max_token_len_per_gpu is 5; it has to be at least ")) << text;
  EXPECT_EQ(error(kPpo, {kPadded, actor + "ppo_max_token_len_per_gpu=5"}), "ok")
      << "nothing is packed";
}

TEST_F(JobFile, ABudgetThatNobodySetFollowsTheLongestRow) {
  const std::string actor = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
  const std::vector<std::string> longer = {"data.max_prompt_length=2000",
                                           "data.max_response_length=38000",
                                           "algorithm.use_kl_in_reward=true"};
  ASSERT_EQ(error(kPpo, longer), "ok");
  EXPECT_EQ(job_.actor.ppo_max_token_len_per_gpu, 40000);
  EXPECT_EQ(job_.critic.ppo_max_token_len_per_gpu, 40000);
  EXPECT_EQ(job_.rollout.log_prob_max_token_len_per_gpu, 0) << "as the actor's";
  EXPECT_EQ(job_.adapted,
            (std::vector<std::string>{actor + "=40000", "critic.ppo_max_token_len_per_gpu=40000"}));
  // One that is set is an error that names it.
  for (const std::string& key : {actor, std::string("critic.ppo_max_token_len_per_gpu")}) {
    std::vector<std::string> keys = longer;
    keys.push_back(key + "=39999");
    EXPECT_TRUE(has(error(kPpo, keys), key + " is 39999; it has to be at least 40000"));
  }
  const std::string pairs =
      "task = \"dpo\"\nactor_rollout_ref.model.path = \"a\"\n[data]\nuse_dynamic_bsz = true\n";
  ASSERT_EQ(error(pairs, {"data.max_prompt_length=30000", "data.max_response_length=10000"}), "ok");
  EXPECT_EQ(job_.data.max_token_len_per_gpu, 80000) << "both texts of a pair";
  // Ranks that divide sequences have a share each.
  ASSERT_EQ(error(pairs, {"data.max_prompt_length=30000", "data.max_response_length=10000",
                          "parallel.context_parallel_size=2", "trainer.n_gpus_per_node=2"}),
            "ok");
  EXPECT_EQ(job_.data.max_token_len_per_gpu, 40000);
  ASSERT_EQ(error(kPpo), "ok");
  EXPECT_TRUE(job_.adapted.empty());
}

TEST_F(JobFile, TheBudgetOfEveryPhaseIsChecked) {
  const std::vector<std::string> keys = {
      "actor_rollout_ref.actor.use_dynamic_bsz=true",
      "algorithm.use_kl_in_reward=true",
      "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=9000",
      "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8000",
      "critic.forward_max_token_len_per_gpu=7000",
      "reward_model.forward_max_token_len_per_gpu=6000"};
  ASSERT_EQ(error(kPpo, keys), "ok");
  std::vector<std::string> budgets;
  for (const Phase& phase : describe(job_).phases)
    if (phase.body != Body::kGenerate) budgets.emplace_back(token_budget(job_, phase).key);
  EXPECT_EQ(budgets.size(), 6U);
  for (const std::string& key : budgets) {
    std::vector<std::string> small = keys;
    small.push_back(key + "=5");
    EXPECT_TRUE(has(error(kPpo, small), key + " is 5; it has to be at least ")) << key;
  }
}

TEST_F(JobFile, AnEvaluationScoresTheLongestRow) {
  const std::vector<std::string> keys = {"task=eval", "data.max_prompt_length=2000",
                                         "data.max_response_length=38000"};
  const std::string budget = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
  const std::string small = "[actor_rollout_ref.actor]\nppo_max_token_len_per_gpu = ";
  for (const std::string& of_training : {std::string(), small + "64\n"}) {
    ASSERT_EQ(error(kPpo + of_training, keys), "ok");
    const Recipe recipe = describe(job_);
    const Phase* const scores = recipe.find(PhaseId::kRewards);
    ASSERT_NE(scores, nullptr);
    EXPECT_EQ(batching_of(job_, *scores).tokens, 40000);
    EXPECT_EQ(job_.adapted, std::vector<std::string>{budget + "=40000"});
  }
  // One that is set for the evaluation stays: on the command line, or in a file of an evaluation.
  std::vector<std::string> given = keys;
  given.push_back(budget + "=39999");
  EXPECT_TRUE(has(error(kPpo, given), budget + " is 39999; it has to be at least 40000"));
  std::string own = kPpo + small + "39999\n";
  own.replace(own.find("ppo"), 3, "eval");
  EXPECT_TRUE(has(error(own, keys), budget + " is 39999; it has to be at least 40000"));
  given.back() = budget + "=40001";
  ASSERT_EQ(error(kPpo, given), "ok");
  EXPECT_EQ(job_.actor.ppo_max_token_len_per_gpu, 40001);
  EXPECT_TRUE(job_.adapted.empty());
}

TEST_F(JobFile, RanksShareTheBatchAndMicroBatchesAreTheirOwn) {
  const std::string mini = "actor_rollout_ref.actor.ppo_mini_batch_size=32";
  ASSERT_TRUE(load(kPpo, {kPadded, mini, "trainer.nnodes=2", "trainer.n_gpus_per_node=4",
                          "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
                          "critic.ppo_micro_batch_size_per_gpu=2"})
                  .ok());
  EXPECT_EQ(job_.ranks(), 8);
  EXPECT_EQ(job_.rows_per_rank(job_.main_model()), 8);
  EXPECT_EQ(job_.sequences_per_rank(job_.main_model()), 8);
  EXPECT_EQ(job_.sequences_per_step(), 64);
  EXPECT_EQ(job_.rollout_batch(), 8);
  std::string text = error(kPpo, {mini, "trainer.n_gpus_per_node=3"});
  EXPECT_TRUE(has(text, "ppo_mini_batch_size 32 cannot be shared by 3 ranks")) << text;
  // 4 prompts a rank, micro batches of 8
  text = error(kPpo, {kPadded, mini, "trainer.n_gpus_per_node=8",
                      "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"});
  EXPECT_TRUE(has(text,
                  "ppo_micro_batch_size_per_gpu 8 does not divide "
                  "actor_rollout_ref.actor.ppo_mini_batch_size / 8 ranks = 4; possible near it: "
                  "1, 2, 4"))
      << text;
  text = error("task='sft'\n[actor_rollout_ref.model]\npath='a'\n", {"trainer.nnodes=5"});
  EXPECT_TRUE(has(text, "data.train_batch_size 64 cannot be shared by 5 ranks")) << text;
}

TEST_F(JobFile, MicroBatchesThatNobodySetFitWhatARankHas) {
  const std::string mini = "actor_rollout_ref.actor.ppo_mini_batch_size=32";
  ASSERT_TRUE(load(kPpo, {kPadded, mini}).ok());
  EXPECT_TRUE(job_.adapted.empty());
  ASSERT_TRUE(load(kPpo, {kPadded, mini, "trainer.n_gpus_per_node=8"}).ok());
  EXPECT_EQ(job_.actor.ppo_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(job_.critic.ppo_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(job_.adapted,
            (std::vector<std::string>{"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
                                      "critic.ppo_micro_batch_size_per_gpu=4"}));
  // What is configured is the value that a run has.
  const Json resolved = job_.bind().to_json();
  EXPECT_EQ(resolved["critic"]["ppo_micro_batch_size_per_gpu"], 4);
  // One that was set stays; the largest that divides is taken, not half of the default.
  ASSERT_TRUE(load(kPpo, {kPadded, mini, "trainer.n_gpus_per_node=8",
                          "critic.ppo_micro_batch_size_per_gpu=2"})
                  .ok());
  EXPECT_EQ(job_.critic.ppo_micro_batch_size_per_gpu, 2);
  EXPECT_EQ(job_.adapted.size(), 1U);
  const std::string sft = "task='sft'\n[actor_rollout_ref.model]\npath='a'\n";
  ASSERT_TRUE(load(sft, {"data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=16",
                         "data.train_batch_size=96", "trainer.nnodes=3"})
                  .ok());
  EXPECT_TRUE(job_.adapted.empty());
  ASSERT_TRUE(
      load(sft, {"data.use_dynamic_bsz=false", "data.train_batch_size=90", "trainer.nnodes=6"})
          .ok());
  EXPECT_EQ(job_.data.micro_batch_size_per_gpu, 3);
  // Packed, sequences are not counted.
  ASSERT_TRUE(load(sft, {"trainer.n_gpus_per_node=8", "data.use_dynamic_bsz=true"}).ok());
  EXPECT_TRUE(job_.adapted.empty());
}

// GPT-2 has 1 024 positions, the defaults add up to 2 048.
TEST_F(JobFile, LengthsThatNobodySetFitTheModelsPositions) {
  const auto write_model = [&](const std::string& name, int positions) {
    std::filesystem::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "config.json")
        << R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": )"
        << positions << "}";
  };
  write_model("small", 1023);
  write_model("large", 4096);
  const std::string sft = "task='sft'\n[actor_rollout_ref.model]\npath='small'\n";
  ASSERT_TRUE(load(sft).ok()) << error(sft);
  EXPECT_EQ(job_.data.max_prompt_length, 511);
  EXPECT_EQ(job_.data.max_response_length, 512);
  EXPECT_EQ(job_.adapted, (std::vector<std::string>{"data.max_prompt_length=511",
                                                    "data.max_response_length=512"}));
  // One that was set stays, and leaves the rest; both stay, whatever they add up to.
  ASSERT_TRUE(load(sft, {"data.max_response_length=1000"}).ok());
  EXPECT_EQ(job_.data.max_prompt_length, 23);
  EXPECT_EQ(job_.adapted.size(), 1U);
  ASSERT_TRUE(load(sft, {"data.max_response_length=1023"}).ok());
  EXPECT_EQ(job_.data.max_prompt_length, 1024) << "no position is left";
  ASSERT_TRUE(load(sft, {"data.max_response_length=1000", "data.max_prompt_length=1000"}).ok());
  EXPECT_TRUE(job_.adapted.empty());
  // The model with the fewest positions decides, and packed micro-batches hold the lengths it leaves.
  const std::string ppo =
      "task='ppo'\n[actor_rollout_ref.model]\npath='large'\n[reward_model.model]\npath='small'\n";
  ASSERT_TRUE(load(ppo).ok()) << error(ppo);
  EXPECT_EQ(job_.max_sequence_length(), 1023);
  ASSERT_TRUE(load("task='sft'\n[actor_rollout_ref.model]\npath='large'\n").ok());
  EXPECT_TRUE(job_.adapted.empty());
}

}  // namespace
}  // namespace neap::spec
