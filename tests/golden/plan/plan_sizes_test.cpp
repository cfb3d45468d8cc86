// Plans of jobs whose sizes are as large as their keys allow: they end, in bounded memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <string>
#include <vector>

#include "golden/plan/jobs.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

constexpr long kMostKib = 1 << 20;  // 1 GiB

long used_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Not one that is known to be refused before anything is planned.
void plan_or_refuse(const std::string& config, const std::vector<std::string>& overrides) {
  spec::Job job;
  const Status loaded = spec::Job::load(kFolder / config, overrides, job);
  if (!loaded.ok()) return;
  const Result<PlanOrLeast> found = plan_or_least(job, target_of(job), {});
  if (found.ok() && found->plan) {
    EXPECT_TRUE(std::isfinite(found->plan->seconds())) << overrides.front();
    EXPECT_GE(found->plan->seconds(), 0) << overrides.front();
  }
}

TEST(PlansOfLargeSizes, EveryIntegerMayBeAsLargeAsItsKeyAllows) {
  spec::Job job;
  const ConfigTable table = job.bind();
  const long before = used_kib();
  for (const ConfigTable::Key& key : table.keys()) {
    if (!key.type.starts_with("integer")) continue;
    const double most = key.maximum.value_or(static_cast<double>(kMostInteger));
    for (const double value : {0.0, 1.0, most})
      for (const char* config : {"qwen15_sft.toml", "qwen7b_grpo.toml"})
        plan_or_refuse(config, {key.path + "=" + bound_text(value)});
  }
  EXPECT_LT(used_kib() - before, kMostKib);
}

TEST(PlansOfLargeSizes, SoMayEverySizeAndNumber) {
  spec::Job job;
  const ConfigTable table = job.bind();
  const long before = used_kib();
  for (const ConfigTable::Key& key : table.keys()) {
    if (key.type == "size")
      for (const char* value : {"1 B", "9223372036854775807 B", "8388607 TiB"})
        plan_or_refuse("qwen7b_grpo.toml", {key.path + "=" + value});
    if (key.type == "number")
      for (const char* value : {"-1e308", "0", "1e308"})
        plan_or_refuse("qwen7b_grpo.toml", {key.path + "=" + value});
  }
  EXPECT_LT(used_kib() - before, kMostKib);
}

TEST(PlansOfLargeSizes, SoMayThoseOfAStepTogether) {
  const long before = used_kib();
  const std::string actor = "actor_rollout_ref.actor.", rollout = "actor_rollout_ref.rollout.";
  const std::vector<std::string> step = {"data.train_batch_size=16384", rollout + "n=16",
                                         actor + "ppo_mini_batch_size=16384"};
  const std::vector<std::vector<std::string>> more = {
      {actor + "use_dynamic_bsz=true", actor + "ppo_max_token_len_per_gpu=4194304"},
      {actor + "use_dynamic_bsz=false", rollout + "batch_size=0"},
      {actor + "use_dynamic_bsz=false", actor + "ppo_micro_batch_size_per_gpu=2048"},
      {actor + "ppo_epochs=256", actor + "ppo_mini_batch_size=1"},
      {"data.max_prompt_length=65536", rollout + "max_num_batched_tokens=1"}};
  for (const std::vector<std::string>& keys : more) {
    std::vector<std::string> overrides = step;
    overrides.insert(overrides.end(), keys.begin(), keys.end());
    plan_or_refuse("qwen7b_grpo.toml", overrides);
  }
  EXPECT_LT(used_kib() - before, kMostKib);
}

}  // namespace
}  // namespace neap::plan
