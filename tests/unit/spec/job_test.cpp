#include "spec/job.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "spec/architecture.h"
#include "spec/job_change.h"
#include "spec/job_model.h"
#include "spec/peer_keys.h"
#include "spec/recipe.h"

namespace neap::spec {
namespace {

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

constexpr const char* kPadded = "actor_rollout_ref.actor.use_dynamic_bsz=false";

constexpr const char* kPpo = R"(
task = "ppo"
[actor_rollout_ref.model]
path = "models/actor"
[reward_model.model]
path = "models/reward"
)";

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

constexpr const char* kRules = R"(
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
        "where reward.functions.0.kind is \"format\"");
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

TEST_F(JobFile, KeysThatAreNotReadAreNamed) {
  const auto warnings = [&](const std::string& text, const std::vector<std::string>& overrides) {
    EXPECT_EQ(error(text, overrides), "ok");
    std::string all;
    for (const std::string& warning : job_.warnings) all += warning + "\n";
    return all;
  };
  EXPECT_EQ(warnings(kPpo, {}), "");
  const std::string file = (folder_ / "job.toml").string();
  const std::string other = std::string(kPpo) + "[critic]\noptim.lr = 1e-4\nppo_epochs = 2\n";
  EXPECT_EQ(warnings(other, {"task=grpo"}),
            "critic.ppo_epochs (" + file + ":9) and critic.optim.lr (" + file +
                ":8) have no effect: task is \"grpo\". They are read where task is \"ppo\"\n");
  EXPECT_EQ(warnings(kPpo, {"dpo.beta=0.2"}),
            "\"dpo.beta=0.2\" on the command line has no effect: task is \"ppo\". It is read where "
            "task is \"dpo\"\n");
  EXPECT_TRUE(has(warnings(kRules, {"task=sft"}), "[[reward.functions]] (" + file));
  EXPECT_TRUE(has(warnings(kPpo, {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"}),
                  "actor_rollout_ref.actor.use_dynamic_bsz is true. It is read where"));
  // Somebody wanted what the key belongs to.
  const std::string alpha = "actor_rollout_ref.model.lora_alpha=32";
  EXPECT_TRUE(
      has(error(kPpo, {alpha}),
          "actor_rollout_ref.model.lora_alpha is set, but actor_rollout_ref.model.lora_rank "
          "is 0 (every weight is trained)"));
  EXPECT_TRUE(
      has(error(kPpo, {"actor_rollout_ref.actor.kl_loss_coef=0.1"}), "no KL is in the loss"));
  EXPECT_EQ(error(kPpo, {alpha, "actor_rollout_ref.model.lora_rank=8"}), "ok");
  const std::string base = "trainer.save_lora_base=true", critic = "critic.model.lora_rank=8";
  EXPECT_TRUE(has(warnings(kPpo, {base}),
                  "\"trainer.save_lora_base=true\" on the command line has no "
                  "effect: actor_rollout_ref.model.lora_rank is 0"));
  EXPECT_EQ(warnings(kPpo, {base, "actor_rollout_ref.model.lora_rank=8"}), "");
  EXPECT_EQ(warnings(kPpo, {base, critic}), "");
  // It was switched off.
  EXPECT_TRUE(has(warnings(kPpo, {alpha, "actor_rollout_ref.model.lora_rank=0"}), "has no effect"));
  EXPECT_TRUE(has(warnings(kPpo, {"actor_rollout_ref.actor.kl_loss_coef=0.1",
                                  "actor_rollout_ref.actor.use_kl_loss=false"}),
                  "has no effect"));
  // An evaluation takes the file of a training.
  EXPECT_EQ(warnings(other, {"task=eval"}), "");
  EXPECT_TRUE(has(warnings(other, {"task=eval", "dpo.beta=1"}), "dpo.beta=1"));
}

TEST_F(JobFile, SlipsOfTheFirstHourNameTheKey) {
  const std::string program = std::string(kRules) + "[[reward.functions]]\nkind = \"program\"\n";
  EXPECT_TRUE(has(error(program + "command = \"python3 judge.py x\"\n"),
                  "as a list: [\"python3\", \"judge.py\", \"x\"]"));
  EXPECT_EQ(error(program + "command = [\"python3\", \"judge.py\"]\n"), "ok");
  ASSERT_EQ(error(kPpo), "ok");
  job_.launched_ranks = 1;
  EXPECT_TRUE(has(job_.validate().message(), "data.train_files is empty"));
  const Status missing = Architecture::from_folder(folder_ / "Qwen" / "Qwen3-4B").status();
  EXPECT_TRUE(has(missing.message(), "`hf download Qwen/Qwen3-4B --local-dir "))
      << missing.message();
  // A checkpoint of a run that was not made yet is no repository.
  for (const std::string name : {"latest", "global_step_20"}) {
    const Status early = Architecture::from_folder(folder_ / "output" / name / "actor").status();
    EXPECT_TRUE(has(early.message(), "Train first")) << early.message();
    EXPECT_FALSE(has(early.message(), "hf download")) << early.message();
  }
}

TEST_F(JobFile, ConditionsNameKeysAndTheirValues) {
  Job job;
  const ConfigTable table = job.bind();
  for (const auto& key : table.keys()) {
    for (const ConfigCondition& condition : key.conditions) {
      if (condition.key.empty()) continue;
      const ConfigTable::Key* decides = table.find(condition.key);
      ASSERT_NE(decides, nullptr) << key.path << " names " << condition.key;
      EXPECT_NE(condition.values.empty(), !condition.holds) << key.path;
      for (const Json& value : condition.values) {
        if (decides->choices.empty()) continue;
        EXPECT_NE(std::find(decides->choices.begin(), decides->choices.end(), value),
                  decides->choices.end())
            << key.path << " is read where " << condition.key << " is " << value;
      }
    }
  }
}

TEST_F(JobFile, KeysOfVerlAndTrlAreKnown) {
  const auto unknown = [&](const std::string& key, const std::string& part) {
    const std::string text = error(kPpo, {key + "=1"});
    EXPECT_TRUE(has(text, "unknown key")) << text;
    EXPECT_TRUE(has(text, part)) << text;
    EXPECT_FALSE(has(text, "did you mean")) << text;
  };
  unknown("data.val_batch_size",
          "verl's data.val_batch_size is actor_rollout_ref.rollout.batch_size here");
  unknown("val_batch_size", "verl's data.val_batch_size");
  unknown("fsdp_config.param_offload", "memory.residency");
  unknown("actor_rollout_ref.actor.fsdp_config.fsdp_size", "parallel.zero_shard_size");
  unknown("actor_rollout_ref.actor.fsdp_config.wrap_policy", "docs/parallel.md");
  unknown("use_remove_padding", "packed without padding");
  unknown("+actor_rollout_ref.rollout.gpu_memory_utilization", "device.memory");
  unknown("num_generations", "TRL's num_generations is actor_rollout_ref.rollout.n here");
  unknown("trainer.learning_rate", "actor_rollout_ref.actor.optim.lr");
  EXPECT_TRUE(
      has(error(kPpo, {"critic.adv_estimator=gae"}), "did you mean \"algorithm.adv_estimator\""));
  Job job;
  const ConfigTable table = job.bind();
  for (const Peer peer : kPeers) {
    std::set<std::string_view> seen;
    for (const PeerKey& key : peer_keys(peer)) {
      EXPECT_TRUE(seen.insert(key.key).second) << key.key;
      EXPECT_FALSE(key.here.empty() && key.note.empty()) << key.key;
      if (key.here.empty() || key.here == "reward.functions") continue;
      EXPECT_NE(table.find(key.here), nullptr) << key.key << " -> " << key.here;
    }
  }
}

TEST_F(JobFile, RulesBetweenKeysNameBoth) {
  std::string text = error(kPpo, {"actor_rollout_ref.actor.ppo_mini_batch_size=48"});
  EXPECT_TRUE(has(text, "ppo_mini_batch_size 48 does not divide data.train_batch_size 64")) << text;
  text = error(kPpo, {kPadded, "critic.ppo_micro_batch_size_per_gpu=5"});
  EXPECT_TRUE(has(text, "critic.ppo_micro_batch_size_per_gpu 5 does not divide")) << text;
  text = error(kPpo, {"algorithm.adv_estimator=grpo"});
  EXPECT_TRUE(has(text, "does not go with task \"ppo\"")) << text;
  text = error("task = 'ppo'\n[actor_rollout_ref.model]\npath='a'\n");
  EXPECT_TRUE(has(text, "ppo needs rewards: set reward_model.model.path, or add")) << text;
  text = error("task = 'sft'\n");
  EXPECT_TRUE(has(text, "actor_rollout_ref.model.path is missing")) << text;
  text = error(kPpo, {"trainer.resume_mode=atuo"});
  EXPECT_TRUE(has(text, "\"auto\", \"disable\" or the path")) << text;
  text = error(kPpo, {"trainer.logger=['csv']"});
  EXPECT_TRUE(has(text, "\"csv\"; it can hold")) << text;
  EXPECT_TRUE(
      load(kPpo, {"trainer.logger=['console','jsonl','tensorboard','wandb','mlflow']"}).ok());
  text = error("task='sft'\n[actor_rollout_ref.model]\npath='a'\n",
               {"data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=7"});
  EXPECT_TRUE(has(text, "does not divide data.train_batch_size 64")) << text;
}

TEST_F(JobFile, AnOptimizerRefusesKeysOfAnother) {
  const std::string actor = "actor_rollout_ref.actor.optim.";
  const auto with = [&](const std::vector<std::string>& settings, const std::string& at) {
    std::vector<std::string> overrides;
    overrides.reserve(settings.size());
    for (const std::string& s : settings) overrides.push_back(at + s);
    return error(kPpo, overrides);
  };
  for (const std::string& at : {actor, std::string("critic.optim.")}) {
    EXPECT_EQ(with({"optimizer=adafactor", "relative_step=false", "eps2=0.01"}, at), "ok");
    EXPECT_EQ(with({"optimizer=sm3", "momentum=0.9", "state_dtype=bfloat16"}, at), "ok");
    EXPECT_EQ(with({"optimizer=sgd", "momentum=0.9", "nesterov=true"}, at), "ok");
    std::string text = with({"momentum=0.9"}, at);
    EXPECT_TRUE(has(text, at + "momentum is set, but " + at +
                              "optimizer is \"adamw\". It is read where " + at +
                              "optimizer is \"sm3\" or \"sgd\""))
        << text;
    text = with({"optimizer=adafactor", "beta1=0.9"}, at);
    EXPECT_TRUE(has(text, at + "beta1 is set")) << text;
    text = with({"optimizer=sgd", "nesterov=true"}, at);
    EXPECT_TRUE(has(text, "momentum is 0")) << text;
    text = with({"optimizer=sgd", "state_dtype=bfloat16"}, at);
    EXPECT_TRUE(has(text, "sgd without momentum keeps no state")) << text;
    text = with({"optimizer=lion"}, at);
    EXPECT_TRUE(has(text, "lion")) << text;
    text = with({"state_dtype=float16"}, at);
    EXPECT_TRUE(has(text, "float16")) << text;
    const std::string master = at + "master_dtype=bfloat16";
    EXPECT_EQ(error(kPpo, {master}), "ok");
    text = error(kPpo, {master, "device.dtype=float32"});
    EXPECT_TRUE(has(text, "master_dtype is \"bfloat16\", but the weights are float32")) << text;
  }
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

TEST_F(JobFile, AModelThatIsMissingIsNamed) {
  ASSERT_TRUE(load(kPpo).ok());
  const std::string text = resolve(job_, describe(job_), ModelId::kCritic).status().message();
  EXPECT_TRUE(has(text, "There is no folder")) << text;
  EXPECT_TRUE(has(text, "reading the model of critic")) << text;
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
  EXPECT_TRUE(has(error(kPpo, {"memory.allow=[\"fly\"]"}), "it can hold \"recompute\", \"move\""));
  EXPECT_TRUE(has(error(kPpo, {"memory.allow=[\"move\"]", "memory.update=streamed"}),
                  "memory.allow does not hold \"stream\""));
  EXPECT_TRUE(load(kPpo, {"memory.allow=[\"stream\"]", "memory.update=streamed"}).ok());
  EXPECT_TRUE(has(error(kPpo, {"memory.update=disk"}), "memory.allow does not hold \"disk\""));
  EXPECT_TRUE(load(kPpo, {"memory.allow=[\"disk\"]", "memory.update=disk"}).ok());
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
       {fields::kResponseLength, fields::kRolloutBatch, fields::kDataRows, fields::kDataTokens,
        fields::kActorRows, fields::kActorTokens, fields::kCriticRows, fields::kCriticTokens,
        fields::kLogProbRows, fields::kLogProbTokens, fields::kReferenceRows,
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
  EXPECT_EQ(texts[0], "memory.residency=all");
  EXPECT_EQ(texts[2], "memory.allow=[\"move\",\"bf16_states\"]");
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
