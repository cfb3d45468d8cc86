// What `--fit` and the outlook of a plan find.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden/plan/jobs.h"
#include "golden/plan/model_folders.h"
#include "plan/search/advice.h"
#include "plan/search/tunables.h"

namespace neap::plan {
namespace {

namespace fields = spec::job_fields;

constexpr const char* kResidentWeights =
    R"(memory.allow=["recompute","offload","offload_optimizer"])";

TEST(GoldenPlans, FitRanksPlansThatFit) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {whole_rollouts()}, job).ok());
  Target target = target_of(job);
  for (const Bytes size : {9_GiB + 512_MiB, 24_GiB}) {
    target.capacity = size;
    const auto plans = find_fit(job, target);
    ASSERT_TRUE(plans.ok()) << plans.status().message();
    EXPECT_EQ(plans->size(), 3U);
    for (std::size_t i = 0; i < plans->size(); ++i) {
      const MemoryPlan& plan = (*plans)[i];
      EXPECT_LE(plan.peak, size);
      if (i > 0) {
        EXPECT_GE(plan.seconds(), (*plans)[i - 1].seconds());
        EXPECT_LT(plan.peak, (*plans)[i - 1].peak);
      }
      EXPECT_FALSE(changes_any(plan.changes, fields::kResponseLength));
      for (const spec::ModelId model : {spec::ModelId::kActor, spec::ModelId::kCritic}) {
        EXPECT_FALSE(changes_any(plan.changes, fields::lora_rank(model)));
        EXPECT_FALSE(changes_any(plan.changes, fields::state_dtype(model)));
      }
      expect_overrides_give("opt_ppo.toml", {whole_rollouts()}, plan);
    }
  }
  target.capacity = 5_GiB + 512_MiB;
  EXPECT_FALSE(make_plan(job, target).ok());
  EXPECT_FALSE(find_fit(job, target)->front().changes.empty());
  target.capacity = 100_MiB;
  EXPECT_EQ(find_fit(job, target).status().code(), ErrorCode::kDoesNotFit);
}

TEST(GoldenPlans, LogitsComeInLargerChunksWhereTheyFit) {
  const auto plan_of = [](const std::vector<std::string>& overrides, Bytes capacity) {
    spec::Job job;
    EXPECT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml", overrides, job).ok());
    Target target = target_of(job);
    target.capacity = capacity;
    return *make_plan(job, target);
  };
  const MemoryPlan free = plan_of({}, Bytes());
  EXPECT_EQ(free.modes.logits_chunk, spec::kLargerLogitsChunks.front());
  const MemoryPlan deterministic = plan_of({"trainer.deterministic=true"}, Bytes());
  EXPECT_EQ(deterministic.modes.logits_chunk, spec::kLogitsChunk);
  // Of 73 reads and writes of a gradient of 933 MB, 9 are left.
  EXPECT_LT(free.seconds(), 0.92 * deterministic.seconds());
  EXPECT_GT(free.peak, deterministic.peak);

  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml", {}, job).ok());
  const Bytes least = *least_capacity(job, target_of(job));
  const MemoryPlan tight = plan_of({}, least);
  EXPECT_EQ(tight.modes.logits_chunk, spec::kLogitsChunk);
  EXPECT_LE(tight.peak, least);
  // Each size of chunks on the way is a plan that is no slower than those of less memory.
  double before = tight.seconds();
  for (const Bytes capacity : {24_GiB, 30_GiB, 44_GiB, 70_GiB}) {
    const MemoryPlan plan = plan_of({}, capacity);
    EXPECT_LE(plan.peak, capacity);
    EXPECT_LE(plan.seconds(), before * 1.0001);
    before = plan.seconds();
  }
}

TEST(GoldenPlans, DecodingIsInGraphsWhereTheyFit) {
  spec::Job job;
  const std::string whole = "actor_rollout_ref.rollout.enable_chunked_prefill=false";
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {whole}, job).ok());
  const auto plan_of = [&](Bytes capacity) {
    Target target = target_of(job);
    target.capacity = capacity;
    return *make_plan(job, target);
  };
  const MemoryPlan in_graphs = plan_of(Bytes());
  EXPECT_TRUE(in_graphs.modes.graphs);
  const std::optional<std::size_t> tag = in_graphs.index_of({spec::TagKind::kGraphs});
  ASSERT_TRUE(tag);
  EXPECT_EQ(in_graphs.tags[*tag].name(), "rollout.graphs");
  EXPECT_GT(in_graphs.tags[*tag].bytes, Bytes());
  const Bytes least = *least_capacity(job, target_of(job));
  const MemoryPlan tight = plan_of(least);
  EXPECT_FALSE(tight.modes.graphs);
  EXPECT_FALSE(tight.index_of({spec::TagKind::kGraphs}));
  EXPECT_LE(tight.peak, least);

  job.rollout.graphs = "off";
  const MemoryPlan eager = plan_of(Bytes());
  EXPECT_FALSE(eager.modes.graphs);
  EXPECT_LT(in_graphs.phases.front().seconds, 0.75 * eager.phases.front().seconds);
  EXPECT_EQ(*least_capacity(job, target_of(job)), least);
}

TEST(GoldenPlans, ShorterPrefillMakesRoomForGraphs) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(NEAP_SOURCE_DIR "/examples/gsm8k/qwen2.5-1.5b.toml",
                              {whole_rollouts(), "actor_rollout_ref.model.lora_rank=32",
                               "actor_rollout_ref.rollout.batch_size=2",
                               "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                               "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"},
                              job)
                  .ok());
  Target target = target_of(job);
  target.own_kernels = true;
  const MemoryPlan roomy = *make_plan(job, target);
  EXPECT_TRUE(roomy.modes.graphs);
  EXPECT_FALSE(changes_any(roomy.changes, fields::kPrefillTokens));
  target.capacity = *least_capacity(job, target) + 4_MiB;
  spec::Job whole = job;
  whole.rollout.enable_chunked_prefill = false;
  EXPECT_FALSE(make_plan(whole, target)->modes.graphs);
  const MemoryPlan tight = *make_plan(job, target);
  EXPECT_LE(tight.peak, target.capacity);
  EXPECT_TRUE(tight.modes.graphs);
  ASSERT_TRUE(changes_any(tight.changes, fields::kPrefillTokens));
  spec::Job repeatable = job;
  repeatable.trainer.deterministic = true;
  EXPECT_FALSE(changes_any(make_plan(repeatable, target)->changes, fields::kPrefillTokens));
  spec::apply(tight.changes, job);
  EXPECT_LT(job.rollout.max_num_batched_tokens, 512);
  const MemoryPlan again = *make_plan(job, target);
  EXPECT_EQ(again.peak, tight.peak);
  EXPECT_TRUE(again.modes.graphs);
}

TEST(GoldenPlans, ExactSettingsGoAllTheWayDownBeforeTheTrainingChanges) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen7b_grpo.toml",
                              {"actor_rollout_ref.rollout.n=16", "data.train_batch_size=1024",
                               "actor_rollout_ref.actor.ppo_mini_batch_size=256",
                               "data.max_prompt_length=512", "data.max_response_length=8192"},
                              job)
                  .ok());
  Target target = target_of(job);
  target.capacity = 80_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  EXPECT_FALSE(changes_any(plans->front().changes, fields::kResponseLength));
}

// Whether the weights are downloaded yet or not.
TEST(GoldenPlans, AdaptersAreTriedOnAFolderWithTheConfigurationAlone) {
  spec::Job job;
  ASSERT_TRUE(
      spec::Job::load(NEAP_SOURCE_DIR "/examples/gsm8k/qwen2.5-1.5b.toml", {kResidentWeights}, job)
          .ok());
  Target target = target_of(job);
  target.capacity = 8_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  const std::vector<spec::JobChange>& changes = plans->front().changes;
  const spec::JobChange adapter(fields::lora_rank(spec::ModelId::kActor), 16);
  EXPECT_NE(std::find(changes.begin(), changes.end(), adapter), changes.end());
}

TEST(GoldenPlans, FitTakesAnotherTrainingWhereNothingElseFits) {
  const WithWeights weights;
  spec::Job job;
  std::vector<std::string> overrides = weights.paths();
  overrides.emplace_back(kResidentWeights);
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", overrides, job).ok());
  Target target = target_of(job);
  target.capacity = 6_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  EXPECT_LE(plans->front().peak, target.capacity);
  const std::vector<std::string_view> effects = effects_of(plans->front());
  EXPECT_TRUE(std::any_of(effects.begin(), effects.end(), [](std::string_view e) {
    return e.find("another training") != std::string_view::npos;
  }));
}

TEST(GoldenPlans, FitAndOutlookOfEveryTask) {
  for (const char* config : {"opt350_reward_host.toml", "qwen7b_grpo.toml", "qwen15_sft.toml"}) {
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / config, {}, job).ok());
    Target target = target_of(job);
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << config << found.status().message();
    ASSERT_TRUE(found->outlook.smaller.has_value()) << config;
    target.capacity = found->outlook.smaller->peak;
    const auto plans = find_fit(job, target);
    ASSERT_TRUE(plans.ok()) << config << plans.status().message();
    EXPECT_LE(plans->front().seconds(), found->outlook.smaller->seconds() * (1 + 1e-9)) << config;
    for (const MemoryPlan& plan : *plans) expect_overrides_give(config, {}, plan);
  }
}

TEST(GoldenPlans, FitRanksWhatNeedsMoreHostMemoryBehind) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml", {}, job).ok());
  Target target = target_of(job);
  target.capacity = 18_GiB;
  const auto all = find_fit(job, target);
  ASSERT_TRUE(all.ok()) << all.status().message();
  Bytes most;
  for (const MemoryPlan& plan : *all) most = std::max(most, plan.host_bytes);
  ASSERT_GT(most, 1_GiB);
  // Nothing of the same training fits a little host memory: what needs more is all that there is.
  const auto behind = find_fit(job, target, {1_GiB});
  ASSERT_TRUE(behind.ok()) << behind.status().message();
  EXPECT_EQ(behind->front().host_bytes, all->front().host_bytes);
  // Enough for everything: as without a limit.
  const auto enough = find_fit(job, target, {1_TiB});
  ASSERT_TRUE(enough.ok());
  ASSERT_EQ(enough->size(), all->size());
  EXPECT_EQ(enough->front().peak, all->front().peak);
  // Between the two: those that fit come first.
  const HostLimit less{most - 1_MiB};
  const auto ranked = find_fit(job, target, less);
  ASSERT_TRUE(ranked.ok()) << ranked.status().message();
  EXPECT_GT(ranked->back().host_bytes, less.bytes);
  for (std::size_t i = 1; i < ranked->size(); ++i)
    EXPECT_LE((*ranked)[i - 1].host_bytes > less.bytes, (*ranked)[i].host_bytes > less.bytes);
}

TEST(GoldenPlans, OutlookHoldsWhatItPromises) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  for (const std::uint64_t gib : {16U, 22U, 28U, 60U}) {
    target.capacity = Bytes(gib << 30);
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    const MemoryPlan& plan = found->plan;
    EXPECT_EQ(plan.peak, make_plan(job, target)->peak);
    EXPECT_EQ(found->outlook.least_capacity, *least_capacity(job, target));
    if (found->outlook.smaller) {
      EXPECT_LE(found->outlook.smaller->peak.count(), plan.peak.count() * 98 / 100);
      EXPECT_GE(found->outlook.smaller->seconds(), plan.seconds() * (1 - 1e-9));
    }
    if (found->outlook.faster) {
      const MemoryPlan& faster = *found->outlook.faster;
      EXPECT_LE(faster.seconds(), 0.95 * plan.seconds());
      EXPECT_GT(faster.peak, plan.peak);
      // A little less does not do.
      target.capacity = Bytes(faster.peak.count() * 95 / 100);
      EXPECT_GT(make_plan(job, target)->seconds(), 0.95 * plan.seconds());
    }
    // At 28 GiB most copies hide.
    EXPECT_EQ(found->outlook.faster.has_value(), gib < 28) << gib;
  }
}

TEST(GoldenPlans, WithEverythingResidentNoSmallerPlanIsOffered) {
  spec::Job job;
  ASSERT_TRUE(
      spec::Job::load(kFolder / "opt_ppo.toml", {"memory.offload=none", whole_rollouts()}, job)
          .ok());
  Target target = target_of(job);
  for (const Bytes size : {80_GiB, 16_GiB}) {
    target.capacity = size;
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->plan.fits(), size == 80_GiB);
    EXPECT_FALSE(found->outlook.smaller.has_value());
    EXPECT_FALSE(found->outlook.faster.has_value());
    EXPECT_EQ(found->outlook.to_text(found->plan).empty(), size != 80_GiB);
  }
}

// The words of --fit for a change are those of the tunable that makes it.
TEST(GoldenPlans, ChangesAreToldByTheirTunable) {
  for (const char* config : {"qwen7b_sft.toml", "qwen7b_ppo.toml", "qwen7b_grpo.toml"}) {
    for (const char* packed : {"false", "true"}) {
      spec::Job job;
      ASSERT_TRUE(spec::Job::load(kFolder / config,
                                  {format("data.use_dynamic_bsz={}", packed),
                                   format("actor_rollout_ref.actor.use_dynamic_bsz={}", packed)},
                                  job)
                      .ok());
      for (const Tunable& tunable : tunables(job)) {
        const std::vector<spec::JobChange> changes = tunable.changes(job, 1);
        for (const spec::JobChange& change : changes)
          EXPECT_EQ(effect_of(change), tunable.effect) << spec::assignments({change}).front();
      }
    }
  }
}

}  // namespace
}  // namespace neap::plan
