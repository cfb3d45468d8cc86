#include "spec/job/job.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "spec/keys/peer_keys.h"
#include "spec/recipe/job_change.h"
#include "spec/recipe/job_model.h"
#include "spec/recipe/recipe.h"
#include "unit/spec/job_file.h"

namespace neap::spec {
namespace {

TEST_F(JobFile, KeepsVerlsNamesAndDefaults) {
  ASSERT_TRUE(load(kPpo).ok()) << error(kPpo);
  EXPECT_EQ(job_.actor.clip_ratio_c, 3.0);
  EXPECT_EQ(job_.critic.optim.lr, 1e-5);
  EXPECT_EQ(job_.actor.optim.lr, 1e-6);
  EXPECT_EQ(job_.resolve("x/y"), folder_ / "x/y");
  EXPECT_EQ(job_.resolve("/x"), "/x");
  EXPECT_EQ(job_.critic_path(), "models/reward");
  EXPECT_EQ(job_.reference_path(), "models/actor");
}

TEST_F(JobFile, KeptExperienceNeedsNoRewardsAndNoData) {
  const std::string grpo = "task = \"grpo\"\nactor_rollout_ref.model.path = \"a\"\n";
  EXPECT_TRUE(has(error(grpo), "grpo needs rewards"));
  EXPECT_TRUE(
      has(error(grpo, {"trainer.experience=read"}), "trainer.experience_dir is empty; set"));
  const std::vector<std::string> reads = {"trainer.experience=read", "trainer.experience_dir=kept"};
  ASSERT_EQ(error(grpo, reads), "ok");  // one response to a prompt, no rewards
  EXPECT_FALSE(job_.generates());
  job_.launched_ranks = 1;
  EXPECT_TRUE(job_.validate().ok()) << job_.validate().message();
  EXPECT_TRUE(has(error(kPpo, {"trainer.experience_dir=kept"}), "trainer.experience is \"none\""));
  EXPECT_TRUE(has(error(kPpo, {reads[0], reads[1], "data.val_files=[\"v.jsonl\"]",
                               "trainer.best_metric=val/score/mean"}),
                  "does not validate; leave it out"));
  ASSERT_EQ(error(kPpo, {"trainer.experience=keep"}), "ok");
  EXPECT_TRUE(job_.generates());
}

TEST_F(JobFile, AnEmptyValueOnTheCommandLineTakesBackWhatTheFileSets) {
  const std::string stops = std::string(kPpo) +
                            "[data]\nval_files = [\"v.jsonl\"]\n[trainer]\ntest_freq = 1\n"
                            "stop_metric = \"val/score\"\nstop_value = 0.5\n";
  ASSERT_EQ(error(stops), "ok");
  EXPECT_EQ(job_.trainer.stop_metric, "val/score");
  ASSERT_EQ(error(stops, {"trainer.stop_metric="}), "ok");
  EXPECT_EQ(job_.trainer.stop_metric, "");
  EXPECT_TRUE(
      has(error(kPpo, {"trainer.stop_value=1"}), "trainer.stop_metric is \"\" (nothing ends"));
  Job job;
  ConfigTable table = job.bind();
  for (const ConfigTable::Key& key : table.keys()) {
    if (key.default_text != "\"\"" && key.default_text != "[]") continue;
    EXPECT_EQ(table.apply_override(key.path + "=").message(), "ok");
    EXPECT_FALSE(key.is_set) << key.path;
  }
}

TEST_F(JobFile, FunctionsScoreWithoutARewardModel) {
  ASSERT_TRUE(load(kRules).ok()) << error(kRules);
  ASSERT_EQ(job_.reward.functions.size(), 2u);
  EXPECT_FALSE(job_.has_reward_model());
  EXPECT_EQ(job_.reward.functions[0].weight, 2);
  EXPECT_EQ(job_.reward.functions[0].metric_name(), "numeric");
  EXPECT_EQ(job_.reward.functions[1].metric_name(), "polite");
  ASSERT_TRUE(load(kRules, {"reward.functions.0.tolerance=0.1"}).ok());
  EXPECT_EQ(job_.reward.functions[0].tolerance, 0.1);
  const Job copy = job_;
  EXPECT_EQ(Job(copy).bind().to_json()["reward"]["functions"][1]["pattern"], "please");
}

TEST_F(JobFile, TablesOfRewardsAreChecked) {
  const auto wrong = [&](const std::vector<std::string>& overrides, const char* part) {
    const std::string text = error(kRules, overrides);
    EXPECT_TRUE(has(text, part)) << text;
  };
  wrong({"reward.functions.0.style=think"},
        "reward.functions.0.style is set, but reward.functions.0.kind is \"numeric\". It is read "
        "if reward.functions.0.kind is \"format\"");
  wrong({"reward.functions.1.kind=numeric"},
        "pattern is set, but reward.functions.1.extract is []");
  wrong({"reward.functions.0.extract=['pattern']"}, "reward.functions.0.pattern is empty");
  wrong({"reward.functions.0.extract=['box']"}, "it can hold \"whole\", \"hashes\"");
  wrong({"reward.functions.0.kind=numbers"}, "it can be \"exact\", \"numeric\"");
  wrong({"reward.functions.1.name=numeric"}, "is another function's name, too");
  wrong({"reward.functions.2.weight=1"}, "reward.functions.2.kind is missing; it can be exact,");
  wrong({"reward.functions.2.kind=length"}, "reward.functions.2.buffer_length is missing");
  wrong({"reward.functions.2.kind=regex"}, "reward.functions.2.pattern is missing");
  wrong({"reward.functions.2.kind=length", "reward.functions.2.buffer_length=4",
         "reward.functions.2.formula=trl", "reward.functions.2.penalty_factor=2"},
        "reward.functions.2.formula is \"trl\"");
  wrong({"reward.functions.2.kind=http", "reward.functions.2.url=file:///etc/passwd"},
        "it begins with http:// or https://");
  wrong({"reward.functions.2.kind=program"}, "reward.functions.2.command is missing");
  wrong({"reward.functions.2.kind=program", "reward.functions.2.command=judge",
         "reward.functions.2.default_score=1"},
        "on_failure is \"stop\"");
  wrong({"reward.functions=[]"}, "grpo needs rewards");
}

TEST_F(JobFile, KeysAreUniqueAndExplained) {
  Job job;
  const ConfigTable table = job.bind();
  std::set<std::string> seen;
  for (const auto& key : table.keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_EQ(key.help.back(), '.') << key.path;
    // Defaults pass their own rules.
    if (key.type == "integer" || key.type == "number") {
      const double value = key.read().get<double>();
      EXPECT_GE(value, key.minimum.value_or(value)) << key.path;
      EXPECT_LE(value, key.maximum.value_or(value)) << key.path;
    }
    if (!key.choices.empty()) {
      const Json value = key.read();
      for (const Json& word : value.is_array() ? value : Json::array({value})) {
        EXPECT_NE(std::find(key.choices.begin(), key.choices.end(), word.get<std::string>()),
                  key.choices.end())
            << key.path;
      }
    }
  }
  EXPECT_GT(seen.size(), 90U);
}

TEST_F(JobFile, ClipRatioStandsForBothSidesUnlessOneIsSet) {
  ASSERT_TRUE(load(kPpo, {"actor_rollout_ref.actor.clip_ratio=0.3",
                          "actor_rollout_ref.actor.clip_ratio_high=0.28"})
                  .ok());
  EXPECT_EQ(job_.actor.clip_ratio_low, 0.3);
  EXPECT_EQ(job_.actor.clip_ratio_high, 0.28);
}

TEST_F(JobFile, GrpoTakesItsEstimatorAndNeedsGroups) {
  const std::string error_of_one = error(kPpo, {"task=grpo", "actor_rollout_ref.rollout.n=1"});
  EXPECT_TRUE(has(error_of_one, "rollout.n is 1")) << error_of_one;
  ASSERT_TRUE(load(kPpo, {"task=grpo", "actor_rollout_ref.rollout.n=4"}).ok());
  EXPECT_EQ(job_.algorithm.adv_estimator, AdvantageEstimator::kGrpo);
  EXPECT_EQ(job_.sequences_per_step(), 256);
  EXPECT_FALSE(job_.has_critic());
  ASSERT_TRUE(load(kPpo, {"task=grpo"}).ok());
  EXPECT_EQ(job_.rollout.n, 8);
  ASSERT_TRUE(load(kPpo, {"task=grpo", "algorithm.adv_estimator=remax"}).ok());
  EXPECT_EQ(job_.rollout.n, 1);
}

TEST_F(JobFile, DefaultsFollowTheTaskAndOtherKeys) {
  const std::string sft = "task='sft'\n[actor_rollout_ref.model]\npath='a'\n";
  ASSERT_EQ(error(sft), "ok");
  EXPECT_EQ(job_.actor.optim.lr, 1e-5);
  EXPECT_EQ(job_.trainer.save_freq, 200);
  EXPECT_TRUE(job_.packs());
  ASSERT_EQ(error(sft, {"task=dpo"}), "ok");
  EXPECT_EQ(job_.actor.optim.lr, 1e-6);
  ASSERT_EQ(error(sft, {"actor_rollout_ref.actor.optim.lr=1e-4", "trainer.save_freq=-1"}), "ok");
  EXPECT_EQ(job_.actor.optim.lr, 1e-4);
  EXPECT_EQ(job_.trainer.save_freq, -1);
  ASSERT_EQ(error(kPpo, {"data.train_batch_size=24"}), "ok");
  EXPECT_EQ(job_.actor_mini_batch(), 24);
  EXPECT_EQ(job_.critic_mini_batch(), 24);
  EXPECT_EQ(job_.trainer.save_freq, 20);
  ASSERT_EQ(error(kPpo, {"actor_rollout_ref.actor.ppo_mini_batch_size=16"}), "ok");
  EXPECT_EQ(job_.critic_mini_batch(), 16);
  // Without a reward model the critic starts from the actor.
  ASSERT_EQ(error(kRules, {"task=ppo"}), "ok");
  EXPECT_EQ(job_.critic_path(), "a");
  EXPECT_TRUE(job_.starts_critic_head());
  ASSERT_EQ(error(kPpo), "ok");
  EXPECT_FALSE(job_.starts_critic_head());
}

TEST_F(JobFile, ReferenceIsTheActorsBaseUnderLora) {
  ASSERT_TRUE(load(kPpo).ok());
  EXPECT_FALSE(job_.uses_reference());
  ASSERT_TRUE(load(kPpo, {"algorithm.use_kl_in_reward=true"}).ok());
  EXPECT_TRUE(job_.uses_reference());
  EXPECT_FALSE(job_.reference_is_actor_base());
  ASSERT_TRUE(
      load(kPpo, {"algorithm.use_kl_in_reward=true", "actor_rollout_ref.model.lora_rank=8"}).ok());
  EXPECT_TRUE(job_.reference_is_actor_base());
}

TEST_F(JobFile, AModelThatIsMissingIsNamed) {
  ASSERT_TRUE(load(kPpo).ok());
  const std::string text = resolve(job_, describe(job_), ModelId::kCritic).status().message();
  EXPECT_TRUE(has(text, "There is no folder")) << text;
  EXPECT_TRUE(has(text, "reading the model of critic")) << text;
}

TEST_F(JobFile, WhatWasStartedHasToBeWhatIsConfigured) {
  ASSERT_TRUE(load(kPpo, {"data.train_files=a.jsonl"}).ok());
  job_.launched_ranks = 4;
  EXPECT_EQ(job_.ranks(), 4);
  job_.trainer.nnodes = 2;
  EXPECT_TRUE(job_.validate().ok());
  job_.trainer.n_gpus_per_node = 4;
  const Status status = job_.validate();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(has(status.message(), "4 processes")) << status.message();
}

TEST_F(JobFile, MemoryAllowNamesWhatAPlanMayDo) {
  ASSERT_TRUE(load(kPpo).ok());
  for (const Measure m : {Measure::kRecompute, Measure::kMove, Measure::kStream})
    EXPECT_TRUE(job_.memory.allows(m)) << to_string(m);
  for (const Measure m : {Measure::kDisk, Measure::kMicroBatch, Measure::kBf16States})
    EXPECT_FALSE(job_.memory.allows(m)) << to_string(m);
  ASSERT_TRUE(load(kPpo, {"memory.allow=[\"bf16_states\"]"}).ok());
  EXPECT_TRUE(job_.memory.allows(Measure::kBf16States));
  EXPECT_FALSE(job_.memory.allows(Measure::kMove));
  EXPECT_TRUE(
      has(error(kPpo, {"memory.allow=[\"fly\"]"}), "it can hold \"recompute\", \"offload\""));
  EXPECT_TRUE(has(error(kPpo, {"memory.allow=[\"offload\"]", "memory.optimizer_offload=cpu"}),
                  "memory.allow does not hold \"offload_optimizer\""));
  EXPECT_TRUE(
      load(kPpo, {"memory.allow=[\"offload_optimizer\"]", "memory.optimizer_offload=cpu"}).ok());
  EXPECT_TRUE(
      has(error(kPpo, {"memory.optimizer_offload=nvme"}), "memory.allow does not hold \"nvme\""));
  EXPECT_TRUE(load(kPpo, {"memory.allow=[\"nvme\"]", "memory.optimizer_offload=nvme"}).ok());
}

TEST_F(JobFile, ChangesAreAppliedWithoutText) {
  ASSERT_TRUE(load(kPpo, {kPadded}).ok());
  apply(
      {{job_fields::state_dtype(ModelId::kActor), Dtype::kBfloat16}, {job_fields::kCriticRows, 4}},
      job_);
  EXPECT_TRUE(job_.validate().ok());
  EXPECT_EQ(job_.actor.optim.state_dtype, Dtype::kBfloat16);
  EXPECT_EQ(job_.critic.ppo_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(job_.critic.optim.state_dtype, Dtype::kFloat32);
  apply({{job_fields::kCriticRows, 3}}, job_);
  EXPECT_FALSE(job_.validate().ok());
}

// Text of a change is what a command line takes for it.
TEST_F(JobFile, EveryFieldThatAPlanChoosesHasItsKey) {
  namespace fields = job_fields;
  std::vector<JobChange> changes = {{fields::kResidency, Residency::kAll},
                                    {fields::kUpdate, {false, UpdateMode::kSplit}},
                                    {fields::kAllow, {Measure::kMove, Measure::kBf16States}},
                                    {fields::kPrecomputeReference, true}};
  std::int64_t value = 100;
  for (const JobField<std::int64_t>& size :
       {fields::kResponseLength, fields::kRolloutBatch, fields::kCacheTokens, fields::kDataRows,
        fields::kDataTokens, fields::kActorRows, fields::kActorTokens, fields::kCriticRows,
        fields::kCriticTokens, fields::kLogProbRows, fields::kLogProbTokens, fields::kReferenceRows,
        fields::kReferenceTokens, fields::kRewardRows, fields::kRewardTokens, fields::kValueRows,
        fields::kValueTokens})
    changes.emplace_back(size, ++value);
  for (const ModelId model : {ModelId::kActor, ModelId::kCritic}) {
    changes.emplace_back(fields::activation_checkpointing(model), CheckpointMode::kSelective);
    changes.emplace_back(fields::gradient_checkpointing(model), true);
    changes.emplace_back(fields::lora_rank(model), ++value);
    changes.emplace_back(fields::state_dtype(model), Dtype::kBfloat16);
  }
  const std::vector<std::string> texts = assignments(changes);
  ASSERT_EQ(texts.size(), changes.size());
  EXPECT_EQ(texts[0], "memory.offload=none");
  EXPECT_EQ(texts[2], "memory.allow=[\"offload\",\"bf16_states\"]");
  EXPECT_EQ(texts[4], "data.max_response_length=101");
  EXPECT_EQ(key_of(fields::state_dtype(ModelId::kReward)),
            "actor_rollout_ref.actor.optim.state_dtype");
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(texts[i]);
    Job typed, parsed;
    changes[i].apply(typed);
    ConfigTable table = parsed.bind();
    ASSERT_TRUE(table.apply_override(texts[i]).ok());
    EXPECT_EQ(parsed.bind().to_json(), typed.bind().to_json());
    EXPECT_NE(typed.bind().to_json(), Job().bind().to_json());
  }
}

}  // namespace
}  // namespace neap::spec
