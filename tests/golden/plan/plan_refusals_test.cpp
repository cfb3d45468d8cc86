// Plans that do not fit: the minimum capacity, and advice.
#include <gtest/gtest.h>

#include <optional>

#include "base/format.h"
#include "golden/plan/jobs.h"
#include "golden/plan/model_folders.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

namespace fields = spec::job_fields;

TEST(GoldenPlans, TighterCeilingsMoveMoreAndThenFailWithAdvice) {
  const WithWeights weights;
  spec::Job job;
  std::vector<std::string> overrides = weights.paths();
  overrides.emplace_back(whole_rollouts());
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", overrides, job).ok());
  Target target = target_of(job);
  double before = 0;
  bool failed = false;
  int fitted = 0;
  for (std::uint64_t gib = 60; gib >= 5; gib -= 5) {
    target.capacity = Bytes(gib << 30);
    const Result<MemoryPlan> plan = make_plan(job, target);
    if (plan.ok()) {
      EXPECT_FALSE(failed) << "fits below a size that does not";
      EXPECT_GE(plan->waiting_seconds(), before);
      before = plan->waiting_seconds();
      ++fitted;
      continue;
    }
    failed = true;
    EXPECT_EQ(plan.status().code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(plan.status().message().find("the minimum capacity is"), std::string::npos);
    EXPECT_NE(plan.status().message().find("rollout.batch_size=4: fits in "), std::string::npos)
        << plan.status().message();
  }
  EXPECT_TRUE(failed);
  EXPECT_GE(fitted, 3);
  EXPECT_GT(before, 0);
}

TEST(GoldenPlans, FewerSequencesAreDecodedTogetherWhereNotAllFit) {
  const auto load = [](const std::vector<std::string>& overrides) {
    spec::Job job;
    EXPECT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", overrides, job).ok());
    return job;
  };
  const spec::Job job = load({}), whole = load({whole_rollouts()});
  Target target = target_of(job);
  const Result<Bytes> least = least_capacity(whole, target);
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_LT(*least_capacity(job, target), Bytes(least->count() * 9 / 10));
  target.capacity = *least - 1_GiB;
  EXPECT_EQ(make_plan(whole, target).status().code(), ErrorCode::kDoesNotFit);
  const Result<MemoryPlan> plan = make_plan(job, target);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LE(plan->peak, target.capacity);
  spec::Job run = job;
  spec::apply(plan->changes, run);
  EXPECT_LT(run.rollout_batch(), job.rollout_batch());
  // All are decoded together where that fits and is faster.
  target.capacity = 80_GiB;
  EXPECT_TRUE(make_plan(job, target)->changes.empty());
}

// The size in `text` behind `before`.
std::optional<Bytes> size_behind(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + before.size();
  const std::size_t end = text.find_first_not_of("0123456789. ", begin);
  const Result<Bytes> size = parse_bytes(text.substr(begin, text.find('B', end) + 1 - begin));
  return size.ok() ? std::optional(*size) : std::nullopt;
}

TEST(GoldenPlans, TheLeastCapacityThatARefusalNamesDoesAndALittleLessDoesNot) {
  const struct {
    const char* config;
    std::vector<std::string> overrides;
  } jobs[] = {{"qwen15_sft.toml", {}},
              {"qwen15_sft.toml", {"memory.allow=[]"}},
              {"qwen15_sft.toml", {"memory.allow=[\"offload_optimizer\",\"micro_batch\"]"}},
              {"opt_ppo.toml", {}},
              {"opt_ppo.toml", {"memory.host_budget=6GiB"}},
              {"opt_ppo.toml", {"memory.optimizer_offload=cpu", "memory.host_budget=4GiB"}},
              {"qwen7b_sft.toml", {"memory.optimizer_offload=none"}}};
  for (const auto& [config, overrides] : jobs) {
    SCOPED_TRACE(config + (overrides.empty() ? "" : " " + overrides.front()));
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / config, overrides, job).ok());
    Target target = target_of(job);
    std::optional<Bytes> named;
    Bytes asked = 1_GiB;
    for (int i = 0; i < 2; ++i) {
      target.capacity = asked;
      const Result<MemoryPlan> plan = make_plan(job, target);
      ASSERT_FALSE(plan.ok()) << to_string(asked);
      const std::string text = plan.status().message();
      if (text.find("no capacity is enough") != std::string::npos) break;
      std::optional<Bytes> least = size_behind(text, "the minimum capacity is ");
      ASSERT_TRUE(least.has_value()) << text;
      // The same, whatever was asked for.
      EXPECT_EQ(named.value_or(*least), *least) << text;
      if (!named) {
        target.capacity = *least;
        EXPECT_TRUE(make_plan(job, target).ok()) << to_string(*least);
      }
      named = least;
      asked = *least / 100 * 99 - 20_MiB;
    }
  }
}

TEST(GoldenPlans, TheLeastCapacityIsThatOfTheJobsOwnSettings) {
  for (const char* setting : {"memory.offload=none", "memory.allow=[]", "memory.offload=auto"}) {
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {setting}, job).ok());
    Target target = target_of(job);
    target.capacity = 200_GiB;
    const Bytes least = make_plan_with_outlook(job, target)->outlook.least_capacity;
    target.capacity = least;
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->fits()) << setting;
    target.capacity = least - 1_B;
    const Result<MemoryPlan> less = make_plan(job, target);
    EXPECT_FALSE(less.ok() && less->fits()) << setting;
  }
  // What would do is said.
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {"memory.allow=[]"}, job).ok());
  Target target = target_of(job);
  target.capacity = 20_GiB;
  const std::string refusal = make_plan(job, target).status().message();
  const std::string looser =
      "'memory.allow=[\"offload\",\"offload_optimizer\",\"offload_weights\"]': fits in ";
  const std::optional<Bytes> from = size_behind(refusal, looser);
  ASSERT_TRUE(from.has_value()) << refusal;
  target.capacity = *from;
  job.memory.allow = {spec::Measure::kMove, spec::Measure::kStream, spec::Measure::kStreamWeights};
  EXPECT_TRUE(make_plan(job, target).ok());
  job.memory.offload = spec::Residency::kAll;
  EXPECT_NE(knobs_text(job, target).find("memory.offload=auto: fits in "), std::string::npos)
      << knobs_text(job, target);
}

TEST(GoldenPlans, AdviceThatDoesNotFitIsToldApartAndComesLast) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml", {"memory.allow=[]"}, job).ok());
  Target target = target_of(job);
  bool both = false;
  for (const std::uint64_t gib : {16U, 30U}) {
    target.capacity = Bytes(gib << 30);
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_FALSE(plan.ok());
    const std::string text = plan.status().message();
    bool over = false;
    for (const Suggestion& knob : find_knobs(job, target)) {
      const bool fits = knob.min_capacity <= target.capacity;
      EXPECT_FALSE(fits && over) << text;
      over = over || !fits;
      // No weights are there, and adapters are not trained on random ones.
      EXPECT_FALSE(changes_any(knob.changes, fields::lora_rank(spec::ModelId::kActor)));
      spec::Job changed = job;
      spec::apply(knob.changes, changed);
      ASSERT_TRUE(changed.validate().ok());
      Target there = target;
      there.capacity = knob.min_capacity;
      EXPECT_TRUE(make_plan(changed, there).ok()) << spec::assignments(knob.changes).front();
    }
    both = both || (text.find("fits in") != std::string::npos &&
                    text.find(": needs ") != std::string::npos);
  }
  EXPECT_TRUE(both);
}

TEST(GoldenPlans, HostMemoryThatLacksIsNamed) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  target.capacity = 20_GiB;
  const auto free = make_plan(job, target);
  ASSERT_TRUE(free.ok()) << free.status().message();
  ASSERT_GT(free->host_bytes, 4_GiB);
  target.host_memory = free->host_bytes;
  const auto enough = make_plan(job, target);
  ASSERT_TRUE(enough.ok()) << enough.status().message();
  EXPECT_EQ(enough->host_budget, free->host_bytes);
  EXPECT_LE(enough->host_bytes, free->host_bytes);
  target.host_memory = 1_GiB;
  const Status refused = make_plan(job, target).status();
  EXPECT_EQ(refused.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(refused.message().find("host budget of 1 GiB"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("under 20 GiB"), std::string::npos) << refused.message();
  // A key says more than what is free.
  job.memory.host_budget = free->host_bytes;
  EXPECT_TRUE(make_plan(job, target).ok());
}

TEST(GoldenPlans, AReferenceThatRunsOnceIsOfferedWhereItHelps) {
  const std::vector<std::string> dpo = {"task=dpo", "memory.allow=[\"recompute\"]"};
  Bytes least[2], reference;
  for (const bool once : {false, true}) {
    spec::Job job;
    std::vector<std::string> overrides = dpo;
    if (once) overrides.emplace_back("dpo.precompute_ref_log_probs=true");
    ASSERT_TRUE(spec::Job::load(kFolder / "qwen7b_sft.toml", overrides, job).ok());
    Target target = target_of(job);
    least[once ? 1 : 0] = *least_capacity(job, target);
    target.capacity = Bytes();
    const auto free = make_plan(job, target);
    ASSERT_TRUE(free.ok()) << free.status().message();
    const auto tag = free->index_of({spec::TagKind::kWeights, spec::ModelId::kReference});
    reference = free->tags[tag.value()].bytes;
    target.capacity = 120_GiB;
    const std::string refusal = make_plan(job, target).status().message();
    if (once) {
      EXPECT_EQ(refusal.find("precompute_ref_log_probs"), std::string::npos) << refusal;
    } else {
      EXPECT_NE(refusal.find("dpo.precompute_ref_log_probs=true: needs "), std::string::npos)
          << refusal;
      target.capacity = 140_GiB;
      const std::string closer = make_plan(job, target).status().message();
      EXPECT_NE(closer.find("dpo.precompute_ref_log_probs=true: fits in "), std::string::npos)
          << closer;
    }
  }
  EXPECT_EQ(least[0] - least[1], reference);
}

}  // namespace
}  // namespace neap::plan
