// Pages of the KV cache that plans choose and suggest.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden/plan/jobs.h"
#include "plan/search/advice.h"
#include "step/model/page_table.h"

namespace neap::plan {
namespace {

namespace fields = spec::job_fields;

constexpr const char* kAuto = "actor_rollout_ref.rollout.max_total_tokens=auto";

// LoRA of 1.5B whose KV cache takes most of the memory: 512 sequences of 1024 tokens.
class CachePages : public ::testing::Test {
 protected:
  static spec::Job job_with(std::vector<std::string> overrides) {
    overrides.insert(
        overrides.end(),
        {"actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.rollout.batch_size=512",
         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "memory.allow=[]"});
    spec::Job job;
    const Status loaded =
        spec::Job::load(NEAP_SOURCE_DIR "/examples/gsm8k/qwen2.5-1.5b.toml", overrides, job);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    return job;
  }
  static Target target_with(const spec::Job& job, Bytes capacity) {
    Target target = target_of(job);
    target.own_kernels = true;
    target.capacity = capacity;
    return target;
  }
  static Bytes least_of(const spec::Job& job) { return *least_capacity(job, target_with(job, {})); }
};

TEST_F(CachePages, APlanChoosesThemIfTheJobIsAutomatic) {
  const spec::Job slots = job_with({}), automatic = job_with({kAuto});
  const Bytes enough = least_of(slots), less = enough - 2_GiB;
  EXPECT_LT(least_of(automatic), less);
  EXPECT_EQ(make_plan(slots, target_with(slots, less)).status().code(), ErrorCode::kDoesNotFit);

  const MemoryPlan plan = *make_plan(automatic, target_with(automatic, less));
  EXPECT_LE(plan.peak, less);
  ASSERT_TRUE(changes_any(plan.changes, fields::kCacheTokens));
  spec::Job changed = automatic;
  spec::apply(plan.changes, changed);
  EXPECT_TRUE(step::cache_shape(changed).paged());
  // The numbers on a command line give the same plan.
  spec::Job again = job_with(spec::assignments(plan.changes));
  EXPECT_EQ(make_plan(again, target_with(again, less))->peak, plan.peak);

  // Every sequence has a slot if that fits: nothing waits.
  const MemoryPlan roomy = *make_plan(automatic, target_with(automatic, Bytes()));
  EXPECT_FALSE(changes_any(roomy.changes, fields::kCacheTokens));
  EXPECT_EQ(roomy.seconds(), make_plan(slots, target_with(slots, Bytes()))->seconds());
  EXPECT_LT(roomy.seconds(), plan.seconds());
}

TEST_F(CachePages, AreLeftOutWhereResultsOrKernelsRuleThemOut) {
  const Bytes enough = least_of(job_with({}));
  EXPECT_EQ(least_of(job_with({kAuto, "trainer.deterministic=true"})),
            least_of(job_with({"trainer.deterministic=true"})));
  const spec::Job automatic = job_with({kAuto});
  Target target = target_with(automatic, {});
  target.own_kernels = false;
  EXPECT_EQ(*least_capacity(automatic, target), *least_capacity(job_with({}), target));
  EXPECT_LT(least_of(automatic), enough);
}

TEST_F(CachePages, AJobThatDoesNotFitIsToldOfThem) {
  const spec::Job slots = job_with({});
  const Target target = target_with(slots, least_of(slots) - 2_GiB);
  const std::vector<Suggestion> knobs = find_knobs(slots, target);
  const auto pages = std::find_if(knobs.begin(), knobs.end(), [](const Suggestion& knob) {
    return changes_any(knob.changes, fields::kCacheTokens);
  });
  ASSERT_NE(pages, knobs.end());
  EXPECT_LE(pages->min_capacity, target.capacity);
  EXPECT_TRUE(pages->keeps_training);
  EXPECT_NE(pages->effect.find("pages of the KV cache"), std::string_view::npos);
}

TEST_F(CachePages, FitKeepsMoreRowsThanSlotsWouldHave) {
  const spec::Job slots = job_with({});
  const Target target = target_with(slots, least_of(slots) - 2_GiB);
  const auto plans = find_fit(slots, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  const MemoryPlan& plan = plans->front();
  EXPECT_LE(plan.peak, target.capacity);
  ASSERT_TRUE(changes_any(plan.changes, fields::kCacheTokens));
  spec::Job changed = slots;
  spec::apply(plan.changes, changed);
  const step::CacheShape shape = step::cache_shape(changed);
  EXPECT_TRUE(shape.paged());
  EXPECT_GT(shape.rows * shape.row_tokens, shape.tokens());
  const auto effects = effects_of(plan);
  EXPECT_TRUE(std::any_of(effects.begin(), effects.end(), [](std::string_view effect) {
    return effect.find("pages of the KV cache") != std::string_view::npos;
  }));
}

}  // namespace
}  // namespace neap::plan
