// Jobs whose ranks are of several kinds, and the plan of each kind.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/search/advice.h"

namespace neap::plan {

class CommonChoicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("neap_common_choices-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 1024, "intermediate_size": 4096,
 "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
 "tie_word_embeddings": false, "num_hidden_layers": 8})";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // PPO whose actor has two stages, of which the second has most blocks.
  [[nodiscard]] spec::Job job(const std::vector<std::string>& keys) const {
    std::vector<std::string> all = {"task=ppo",
                                    "trainer.n_gpus_per_node=2",
                                    "data.train_batch_size=32",
                                    "data.max_prompt_length=256",
                                    "data.max_response_length=256",
                                    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
                                    "critic.ppo_mini_batch_size=32",
                                    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512",
                                    "critic.ppo_max_token_len_per_gpu=8192",
                                    "actor_rollout_ref.model.activation_checkpointing=auto",
                                    "critic.model.activation_checkpointing=auto",
                                    "actor_rollout_ref.actor.pipeline_model_parallel_size=2",
                                    "actor_rollout_ref.actor.pipeline_model_parallel_layout=[2,6]"};
    for (const char* const model : {"actor_rollout_ref", "critic", "reward_model"})
      all.push_back(std::string(model) + ".model.path=" + folder_.string());
    all.insert(all.end(), keys.begin(), keys.end());
    spec::Job out;
    const Status status = spec::Job::load({}, all, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  [[nodiscard]] static Target target(Bytes capacity, std::int64_t rank = 0) {
    Target out = gpu_by_name("h100", {})->target;
    out.capacity = capacity;
    out.rank = rank;
    return out;
  }
  // The plan of a rank kind that shares no choices.
  [[nodiscard]] static PlanOrLeast own(const spec::Job& job, Bytes capacity, std::int64_t rank) {
    Result<PlanOrLeast> out = plan_or_least(job, target(capacity, rank), {});
    EXPECT_TRUE(out.ok()) << out.status().message();
    return *std::move(out);
  }

  std::filesystem::path folder_;
};

}  // namespace neap::plan
