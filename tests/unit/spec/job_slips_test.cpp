// Keys and values of a job that cannot be meant: what the error names.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "spec/keys/peer_keys.h"
#include "spec/model/architecture.h"
#include "unit/spec/job_file.h"

namespace neap::spec {
namespace {

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
                ":8) have no effect: task is \"grpo\". They are read if task is \"ppo\"\n");
  EXPECT_EQ(warnings(kPpo, {"dpo.beta=0.2"}),
            "\"dpo.beta=0.2\" on the command line has no effect: task is \"ppo\". It is read if "
            "task is \"dpo\"\n");
  EXPECT_TRUE(has(warnings(kRules, {"task=sft"}), "[[reward.functions]] (" + file));
  EXPECT_TRUE(has(warnings(kPpo, {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"}),
                  "actor_rollout_ref.actor.use_dynamic_bsz is true. It is read if"));
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
        EXPECT_NE(
            std::find(decides->choices.begin(), decides->choices.end(), value.get<std::string>()),
            decides->choices.end())
            << key.path << " is read if " << condition.key << " is " << value;
      }
    }
  }
}

TEST_F(JobFile, AnOldKeyNamesTheNewOne) {
  Job job;
  const ConfigTable table = job.bind();
  const auto renamed = [&](const std::string& old_key, const std::string& key) {
    std::string text = error(kPpo, {old_key + "=1"});
    EXPECT_TRUE(has(text, "unknown key")) << text;
    EXPECT_TRUE(has(text, "Its name is " + key + " now")) << text;
    EXPECT_NE(table.find(key), nullptr) << key;
    return text;
  };
  EXPECT_TRUE(has(renamed("memory.residency", "memory.offload"), "\"all\" is \"none\" now"));
  EXPECT_TRUE(has(renamed("memory.update", "memory.optimizer_offload"),
                  "are \"none\", \"phase_split\", \"cpu\", \"nvme\" now"));
  renamed("memory.disk_folder", "memory.nvme_path");
  renamed("memory.disk_bandwidth", "memory.nvme_bandwidth");
  renamed("actor_rollout_ref.rollout.draw_lengths", "actor_rollout_ref.rollout.sample_lengths");
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
  unknown("fsdp_config.param_offload", "memory.offload");
  unknown("actor_rollout_ref.actor.fsdp_config.fsdp_size", "parallel.zero_shard_size");
  unknown("actor_rollout_ref.actor.fsdp_config.wrap_policy", "zero_stage");
  unknown("use_remove_padding", "packed without padding");
  unknown("+actor_rollout_ref.rollout.gpu_memory_utilization", "device.memory");
  unknown("num_generations", "TRL's num_generations is actor_rollout_ref.rollout.n here");
  unknown("trainer.learning_rate", "actor_rollout_ref.actor.optim.lr");
  unknown("custom_reward_function.path", "kind \"python\"");
  unknown("generation_batch_size", "data.train_batch_size here: it counts responses");
  unknown("gradient_accumulation_steps",
          "per_device_train_batch_size x gradient_accumulation_steps");
  unknown("shuffle_dataset", "always shuffled");
  unknown("learning_rate", "algorithm.preset = \"trl\"");
  EXPECT_TRUE(
      has(error(kPpo, {"critic.adv_estimator=gae"}), "did you mean \"algorithm.adv_estimator\""));
  Job job;
  const ConfigTable table = job.bind();
  for (const Peer peer : kAllPeers) {
    std::set<std::string_view> seen;
    for (const PeerKey& key : peer_keys(peer)) {
      EXPECT_TRUE(seen.insert(key.key).second) << key.key;
      EXPECT_FALSE(key.here.empty() && key.note.empty()) << key.key;
      if (key.here.empty() || key.here == "reward.functions") continue;
      EXPECT_NE(table.find(key.here), nullptr) << key.key << " -> " << key.here;
    }
  }
}

TEST(PeerKeys, ReferenceHasAllKeys) {
  const std::string page = peer_reference();
  for (const Peer peer : kAllPeers)
    for (const PeerKey& key : peer_keys(peer))
      EXPECT_NE(page.find("`" + std::string(key.key) + "`"), std::string::npos) << key.key;
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
    EXPECT_TRUE(has(text, format("{0}momentum is set, but {0}optimizer is \"adamw\". It is read "
                                 "if {0}optimizer is \"sm3\" or \"sgd\"",
                                 at)))
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

}  // namespace
}  // namespace neap::spec
