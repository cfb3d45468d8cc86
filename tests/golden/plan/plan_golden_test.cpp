// Whole plans of whole configurations. NEAP_UPDATE_GOLDEN=1 writes the expected files anew; read
// the difference before committing it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/format.h"
#include "plan/advice.h"
#include "plan/memory_plan.h"
#include "spec/config_docs.h"

namespace neap::plan {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "plan";

Target target_of(const spec::Job& job) {
  Target target;
  target.cuda = job.device.kind == "cuda";
  target.capacity = job.device.memory;
  target.threads = 2;
  return target;
}

// The readable plan, and its numbers to the byte.
std::string describe(const MemoryPlan& plan) {
  std::string text = plan.to_text() + "\nbytes\n";
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    text +=
        format("  {}: persistent {}, transient {}, allocated {}, peak {}\n", plan.phases[p].name,
               plan.schedule[p].persistent.count(), plan.phases[p].transient.count(),
               plan.phases[p].transient_allocated.count(), plan.schedule[p].peak.count());
  }
  for (const TagPlan& tag : plan.tags)
    text += format("  {}: {} in {} regions\n", tag.tag, tag.bytes.count(), tag.regions.size());
  return text;
}

void compare_file(const std::filesystem::path& file, const std::string& text) {
  if (std::getenv("NEAP_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(file, text).ok());
    return;
  }
  const Result<std::string> expected = read_file(file);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  EXPECT_EQ(text, *expected) << file;
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
    for (const Move& m : plan->schedule[p].moves) moved += m.copies ? m.bytes : Bytes();
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
    EXPECT_EQ(sum, tag.bytes);
    // Rounding costs at most a granule, or a thirty-second.
    EXPECT_LE((sum - requested).count(),
              std::max(plan->granularity.count(), requested.count() / 32 + 1))
        << tag.tag;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, GoldenPlan,
    ::testing::Values(
        here("opt_ppo"), here("opt_lora_ppo"), here("qwen7b_ppo"), here("qwen7b_grpo"),
        here("qwen7b_sft"), here("opt350_reward_host"), reviews("reviews_sft", "sft", {}),
        reviews("reviews_reward", "reward", {"actor_rollout_ref.model.path=model"}),
        reviews("reviews_ppo", "ppo",
                {"actor_rollout_ref.model.path=model", "critic.model.path=model",
                 "reward_model.model.path=model"}),
        reviews("reviews_grpo", "grpo",
                {"actor_rollout_ref.model.path=model", "reward_model.model.path=model"})),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GoldenPlans, TighterCeilingsMoveMoreAndThenFailWithAdvice) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  Bytes before;
  bool failed = false;
  for (std::uint64_t gib = 60; gib >= 20; gib -= 5) {
    target.capacity = Bytes(gib << 30);
    const Result<MemoryPlan> plan = make_plan(job, target);
    if (plan.ok()) {
      EXPECT_FALSE(failed) << "fits below a size that does not";
      EXPECT_GE(plan->moved_per_step, before);
      before = plan->moved_per_step;
      continue;
    }
    failed = true;
    EXPECT_EQ(plan.status().code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(plan.status().message().find("the least capacity is"), std::string::npos);
    EXPECT_NE(plan.status().message().find("lora_rank=16"), std::string::npos)
        << plan.status().message();
  }
  EXPECT_TRUE(failed);
}

TEST(GoldenPlans, FitFindsSettingsThatFit) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  target.capacity = 24_GiB;
  ASSERT_FALSE(make_plan(job, target).ok());
  const Result<Fit> fit = find_fit(job, target);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_LE(fit->plan.peak, target.capacity);
  ASSERT_FALSE(fit->overrides.empty());
  // What it says can be pasted, and keeps the training.
  spec::Job changed;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", fit->overrides, changed).ok());
  EXPECT_EQ(changed.actor_model.lora.rank, 0);
  EXPECT_EQ(changed.data.max_response_length, 256);
  const Result<MemoryPlan> plan = make_plan(changed, target);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->peak, fit->plan.peak);
  target.capacity = 100_MiB;
  EXPECT_EQ(find_fit(job, target).status().code(), ErrorCode::kDoesNotFit);
}

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

TEST(GoldenPlans, TheCommittedReferencePageIsTheTable) {
  compare_file(std::filesystem::path(NEAP_SOURCE_DIR) / "docs" / "configuration.md",
               spec::configuration_reference());
}

}  // namespace
}  // namespace neap::plan
