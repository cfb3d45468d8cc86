// Whole plans of whole configurations. NEAP_UPDATE_GOLDEN=1 writes the expected files anew; read
// the difference before committing it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "golden/compare_file.h"
#include "golden/plan/jobs.h"

namespace neap::plan {
namespace {

using testing::compare_file;

// The readable plan, and its numbers to the byte.
std::string describe(const MemoryPlan& plan) {
  std::string text = plan.to_text() + "\nbytes\n";
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    text +=
        format("  {}: persistent {}, transient {}, allocated {}, peak {}\n", plan.phases[p].name(),
               plan.schedule[p].persistent.count(), plan.phases[p].transient.count(),
               plan.phases[p].transient_allocated.count(), plan.schedule[p].peak.count());
  }
  for (const TagPlan& tag : plan.tags)
    text += format("  {}: {} in {} regions\n", tag.name(), tag.bytes.count(), tag.regions.size());
  return text;
}

struct Golden {
  friend void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }
  const char* name;  ///< of the expected file, NAME.txt
  std::filesystem::path config;
  std::vector<std::string> overrides;
};
Golden here(const char* name) {
  return {name, kFolder / (std::string(name) + ".toml"), {}};
}
// The demo's own files; untrained, all models have the shape of the first.
Golden reviews(const char* name, const char* stage, std::vector<std::string> overrides) {
  return {name,
          std::filesystem::path(NEAP_SOURCE_DIR) / "examples" / "reviews" /
              (std::string(stage) + ".toml"),
          std::move(overrides)};
}

class GoldenPlan : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenPlan, IsAsWritten) {
  spec::Job job;
  const Status loaded = spec::Job::load(GetParam().config, GetParam().overrides, job);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const Result<MemoryPlan> plan = make_plan(job, target_of(job));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  compare_file(kFolder / (std::string(GetParam().name) + ".txt"), describe(*plan));

  // What every plan owes, whatever its numbers.
  EXPECT_TRUE(plan->fits());
  Bytes moved;
  for (std::size_t p = 0; p < plan->phases.size(); ++p) {
    EXPECT_LE(plan->phases[p].transient_allocated, plan->phases[p].transient);
    const auto times = static_cast<std::uint64_t>(plan->phases[p].times);
    moved += plan->phases[p].fetched + plan->phases[p].stored;
    for (const Move& m : plan->schedule[p].moves) moved += m.copies ? m.bytes : Bytes();
    for (const Move& m : plan->schedule[p].again)
      moved += m.copies ? m.bytes * (times - 1) : Bytes();
  }
  EXPECT_EQ(moved, plan->moved_per_step);
  for (const TagPlan& tag : plan->tags) {
    Bytes requested, sum;
    for (const RegionPlan& region : tag.regions) {
      Bytes end;
      for (const PartPlan& part : region.parts) {
        EXPECT_TRUE(is_multiple_of(part.offset, kPartAlignment));
        EXPECT_GE(part.offset, end);
        end = part.offset + part.bytes;
      }
      EXPECT_EQ(end, region.bytes);
      requested += region.bytes;
      sum += round_up(region.bytes, plan->granularity);
    }
    if (tag.is_outside()) continue;
    EXPECT_EQ(sum, tag.bytes);
    // Rounding costs at most a granule, or a thirty-second.
    EXPECT_LE((sum - requested).count(),
              std::max(plan->granularity.count(), requested.count() / 32 + 1))
        << tag.name();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, GoldenPlan,
    ::testing::Values(
        here("opt_ppo"), here("opt_ppo_streamed"), here("opt_lora_ppo"), here("qwen7b_ppo"),
        here("qwen7b_grpo"), here("qwen7b_sft"), here("qwen7b_dpo"), here("qwen15_sft"),
        here("qwen15_sft_two_ranks"), here("opt350_reward_host"), reviews("reviews_sft", "sft", {}),
        reviews("reviews_reward", "reward", {"actor_rollout_ref.model.path=model"}),
        reviews("reviews_ppo", "ppo",
                {"actor_rollout_ref.model.path=model", "critic.model.path=model",
                 "reward_model.model.path=model"}),
        reviews("reviews_grpo", "grpo",
                {"actor_rollout_ref.model.path=model", "reward_model.model.path=model"})),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GoldenPlans, JsonSaysWhatTheTextSays) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_lora_ppo.toml", {}, job).ok());
  const Result<MemoryPlan> plan = make_plan(job, target_of(job));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Json json = plan->to_json();
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["peak"], plan->peak.count());
  ASSERT_EQ(json["phases"].size(), plan->phases.size());
  ASSERT_EQ(json["tags"].size(), plan->tags.size());
  EXPECT_EQ(json["phases"][0]["name"], "generate");
  for (const Json& tag : json["tags"]) EXPECT_EQ(tag["cells"].size(), plan->phases.size());
  // No reference of its own: the actor's base serves, and is needed in that phase.
  for (const Json& tag : json["tags"]) EXPECT_NE(tag["tag"], "reference.weights");
  EXPECT_EQ(json["tags"][0]["tag"], "actor.weights");
  EXPECT_EQ(json["tags"][0]["cells"][2], "need");
  EXPECT_EQ(json["tags"][0]["contents"], "frozen");
}

}  // namespace
}  // namespace neap::plan
