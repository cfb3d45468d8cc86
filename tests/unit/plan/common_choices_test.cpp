// Ranks with other stages of an actor choose alike of a critic that they share.
#include "plan/search/common_choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common_choices_fixture.h"
#include "plan/results/plan_words.h"
#include "plan/search/advice.h"
#include "plan/search/stage_plans.h"

namespace neap::plan {
namespace {

using spec::ModelId;

TEST_F(CommonChoicesTest, KindsThatWouldChooseOtherwiseTakeTheChoiceOfOne) {
  struct Case {
    const char* name;
    std::vector<std::string> keys;
    Bytes capacity;
    ChoiceParts parts;
  };
  for (const Case& each :
       {Case{"parts", {"critic.tensor_model_parallel_size=2"}, 2600_MiB, {true, true}},
        Case{"parts", {"critic.tensor_model_parallel_size=2"}, 3600_MiB, {true, true}},
        Case{"whole", {}, 4500_MiB, {}},
        Case{"slices", {"critic.zero_stage=3"}, 4000_MiB, {false, true}}}) {
    SCOPED_TRACE(each.name);
    const spec::Job job = this->job(each.keys);
    const auto critic = [&](const MemoryPlan& plan) {
      return choice_of(plan, ModelId::kCritic, each.parts);
    };
    // The least from there on with which they choose otherwise.
    Bytes capacity = each.capacity;
    std::vector<MemoryPlan> alone;
    for (; capacity < each.capacity + 1_GiB; capacity += 32_MiB) {
      alone.clear();
      for (const std::int64_t rank : {0, 1}) {
        const PlanOrLeast found = own(job, capacity, rank);
        ASSERT_TRUE(found.plan);
        alone.push_back(*found.plan);
      }
      if (critic(alone[0]) != critic(alone[1])) break;
    }
    ASSERT_NE(critic(alone[0]), critic(alone[1])) << "kinds choose alike without a rule";
    const Result<StagePlans> agreed = plan_stages(job, target(capacity));
    ASSERT_TRUE(agreed.ok()) << agreed.status().message();
    const std::vector<StagePlan>& kinds = agreed->stages;
    ASSERT_EQ(kinds.size(), 2u);
    EXPECT_EQ(critic(kinds[0].plan), critic(kinds[1].plan));
    double slowest = 0;
    for (std::size_t k = 0; k < 2; ++k) {
      EXPECT_LE(kinds[k].plan.peak, capacity);
      slowest = std::max(slowest, kinds[k].plan.seconds() - kinds[k].plan.stage_wait_seconds());
    }
    EXPECT_NEAR(slowest, std::max(alone[0].seconds(), alone[1].seconds()), 1e-9);
  }
}

TEST_F(CommonChoicesTest, TheSentenceNamesLayerInputsBesideOffloadedShards) {
  const spec::Job job = this->job(
      {"critic.zero_stage=3",
       R"(memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights"])"});
  ModelChoice critic{ModelId::kCritic};
  critic.homes.layers = critic.homes.inputs = spec::Home::kHost;
  critic.homes.update = spec::UpdateMode::kStreamed;
  const Result<PlanOrLeast> found = plan_or_least(job, target(Bytes()), {{critic}});
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->plan);
  const std::string sentence = sentence_of(*found->plan);
  EXPECT_NE(sentence.find("layer inputs of critic offloaded to the CPU"), std::string::npos)
      << sentence;
}

TEST_F(CommonChoicesTest, ARefusalNamesWhatTheKindNeedsThatNeedsMost) {
  const spec::Job job =
      this->job({"critic.tensor_model_parallel_size=2",
                 R"(memory.allow=["recompute", "offload", "offload_optimizer"])"});
  const Bytes first = own(job, 100_MiB, 0).least, second = own(job, 100_MiB, 1).least;
  ASSERT_LT(first, second);
  const Status status = plan_stages(job, target(100_MiB)).status();
  EXPECT_EQ(status.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(status.message().find("the minimum capacity is " + capacity_text(second)),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("planning rank 1"), std::string::npos) << status.message();
  EXPECT_EQ(plan_stages_or_least(job, target(100_MiB))->least, second);
  EXPECT_TRUE(plan_stages(job, target(second)).ok());
  EXPECT_FALSE(plan_stages(job, target(second - 1_MiB)).ok());
}

TEST_F(CommonChoicesTest, APlanTakesFixedChoices) {
  constexpr ChoiceParts kAll{true, true};
  const spec::Job job = this->job({"critic.model.lora_rank=4"});
  for (const Bytes capacity : {Bytes(), 40_GiB}) {
    const PlanOrLeast free = own(job, capacity, 0);
    ASSERT_TRUE(free.plan);
    ModelChoice fixed = choice_of(*free.plan, ModelId::kCritic, kAll);
    ASSERT_EQ(fixed.homes.layers, spec::Home::kDevice);
    fixed.homes.layers = spec::Home::kHost;
    fixed.homes.update = spec::UpdateMode::kSplit;
    fixed.homes.together = 2;
    fixed.retention->blocks[2] = spec::BlockRetention::all(spec::Retention::kRecompute);
    const Result<PlanOrLeast> found = plan_or_least(job, target(capacity), {{fixed}});
    ASSERT_TRUE(found.ok() && found->plan);
    EXPECT_EQ(choice_of(*found->plan, ModelId::kCritic, kAll), fixed);
    EXPECT_LT(free.plan->seconds(), found->plan->seconds());
  }
}

TEST_F(CommonChoicesTest, NoCapacityIsEnoughForFixedChoicesThatAKindDoesNotHave) {
  const spec::Job job = this->job({});
  ModelChoice fixed = choice_of(*own(job, 40_GiB, 0).plan, ModelId::kCritic);
  // It has no shards of gradients.
  fixed.homes.layers = fixed.homes.gradients = spec::Home::kHost;
  const Result<PlanOrLeast> found = plan_or_least(job, target(40_GiB), {{fixed}});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_FALSE(found->plan);
  EXPECT_EQ(found->least, Bytes(~0ull));
}

TEST_F(CommonChoicesTest, ModelsThatRanksOfSeveralKindsTrainOrDivideAreShared) {
  const auto shared = [&](const std::vector<std::string>& keys) {
    std::string out;
    for (const SharedStage& stage : shared_stages(job(keys))) {
      out += std::string(to_string(stage.model)) + (stage.parts.retention ? "+" : "") +
             (stage.parts.together ? "*" : "");
      for (const std::size_t kind : stage.kinds) out += " " + std::to_string(kind);
      out += ";";
    }
    return out;
  };
  EXPECT_EQ(shared({}), "critic 0 1;");
  EXPECT_EQ(shared({"critic.tensor_model_parallel_size=2"}), "critic+* 0 1;");
  EXPECT_EQ(shared({"critic.context_parallel_size=2"}), "critic+* 0 1;");
  EXPECT_EQ(shared({"critic.pipeline_model_parallel_size=2"}), "");
  EXPECT_EQ(shared({"reward_model.tensor_model_parallel_size=2"}), "critic 0 1;reward* 0 1;");
  EXPECT_EQ(shared({"reward_model.zero_stage=3"}), "critic 0 1;reward* 0 1;");
  EXPECT_EQ(shared({"reward_model.zero_stage=2"}), "critic 0 1;");
  EXPECT_EQ(shared({"critic.zero_stage=1"}), "critic 0 1;");
  EXPECT_EQ(shared({"critic.zero_stage=2"}), "critic* 0 1;");
  EXPECT_EQ(shared({"critic.zero_stage=3"}), "critic* 0 1;");
  // Those that divide the critic have the same stage of the actor.
  const std::string four = "trainer.n_gpus_per_node=4";
  EXPECT_EQ(shared({four, "critic.tensor_model_parallel_size=2"}), "critic 0 1;");
  // Two stages of four kinds.
  EXPECT_EQ(shared({four, "critic.pipeline_model_parallel_size=4"}), "actor 0 1;actor 2 3;");
  EXPECT_TRUE(is_chosen_alike(job({}), ModelId::kCritic));
  EXPECT_TRUE(is_chosen_alike(job({}), ModelId::kActor));
  EXPECT_FALSE(is_chosen_alike(job({}), ModelId::kReward));
}

ModelChoice critic_with(spec::UpdateMode update) {
  ModelChoice out{ModelId::kCritic};
  out.homes.update = update;
  return out;
}

// Outcomes of two kinds that share a critic, which is updated in that way; nullopt: no plan.
class Rounds {
 public:
  explicit Rounds(const spec::Job& job) : common_(job) {}
  struct Planned {
    spec::UpdateMode update;
    double seconds;
  };
  bool take(std::optional<Planned> a, std::optional<Planned> b) {
    std::vector<KindOutcome> outcomes;
    for (const std::optional<Planned>& each : {a, b}) {
      KindOutcome& out = outcomes.emplace_back();
      if (each) {
        out.seconds = each->seconds;
        out.choices.models = {critic_with(each->update)};
      } else {
        out.least = outcomes.size() == 1 ? 2_GiB : 3_GiB;
      }
    }
    return common_.take(outcomes);
  }
  [[nodiscard]] std::optional<spec::UpdateMode> fixed() const {
    const std::vector<ModelChoice> fixed = common_.fixed(0).models;
    EXPECT_EQ(fixed, common_.fixed(1).models);
    return fixed.empty() ? std::nullopt : std::optional(fixed.front().homes.update);
  }
  [[nodiscard]] const CommonChoices& operator*() const { return common_; }

 private:
  CommonChoices common_;
};

TEST_F(CommonChoicesTest, RoundsEndWithTheFastestThatAllKindsFitIn) {
  using spec::UpdateMode;
  using Planned = Rounds::Planned;
  const spec::Job job = this->job({});
  {  // alike
    Rounds rounds(job);
    EXPECT_FALSE(rounds.fixed());
    EXPECT_FALSE(rounds.take(Planned{UpdateMode::kSplit, 1}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ((*rounds).round(), 0u);
    EXPECT_FALSE((*rounds).refused());
  }
  {  // the slower one's costs nothing
    Rounds rounds(job);
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kJoined, 1}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ(rounds.fixed(), UpdateMode::kSplit);
    EXPECT_FALSE(rounds.take(Planned{UpdateMode::kSplit, 1.5}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ((*rounds).round(), 1u);
  }
  {  // it costs more than the other's
    Rounds rounds(job);
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kJoined, 1}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kSplit, 3}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ(rounds.fixed(), UpdateMode::kJoined);
    EXPECT_FALSE(rounds.take(Planned{UpdateMode::kJoined, 1}, Planned{UpdateMode::kJoined, 2.5}));
    EXPECT_EQ((*rounds).round(), 2u);
  }
  {  // of two that are as fast the first
    Rounds rounds(job);
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kJoined, 2}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ(rounds.fixed(), UpdateMode::kJoined);
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kJoined, 2}, Planned{UpdateMode::kJoined, 3}));
    EXPECT_FALSE(rounds.take(Planned{UpdateMode::kSplit, 3}, Planned{UpdateMode::kSplit, 2}));
    EXPECT_EQ((*rounds).round(), 1u);
  }
  {  // only the smaller one fits
    Rounds rounds(job);
    EXPECT_TRUE(rounds.take(Planned{UpdateMode::kStreamed, 1}, Planned{UpdateMode::kJoined, 2}));
    EXPECT_TRUE(rounds.take(std::nullopt, Planned{UpdateMode::kJoined, 2}));
    EXPECT_EQ(rounds.fixed(), UpdateMode::kStreamed);
    EXPECT_FALSE(rounds.take(Planned{UpdateMode::kStreamed, 1}, Planned{UpdateMode::kStreamed, 4}));
    EXPECT_EQ((*rounds).round(), 2u);
    EXPECT_FALSE((*rounds).refused());
  }
  {  // a kind that does not fit alone
    Rounds rounds(job);
    EXPECT_FALSE(rounds.take(std::nullopt, std::nullopt));
    EXPECT_EQ((*rounds).refused(), 1u);
    EXPECT_EQ((*rounds).least(), 3_GiB);
  }
}

TEST_F(CommonChoicesTest, WhereNoKindsChoiceFitsAllTheSmallerOfEachPartIsTried) {
  const spec::Job job = this->job({});
  CommonChoices common(job);
  std::vector<KindOutcome> outcomes(2);
  for (KindOutcome& of : outcomes) of.choices.models = {{ModelId::kCritic}};
  outcomes[0].choices.models[0].homes.update = spec::UpdateMode::kStreamed;
  outcomes[0].choices.variant = {1, {1}};
  outcomes[1].choices.variant = {0, {2}};
  outcomes[1].choices.models[0].homes.layers = spec::Home::kDisk;
  outcomes[1].seconds = 1;
  ASSERT_TRUE(common.take(outcomes));
  std::vector<KindOutcome> refused(2);
  refused[0].least = refused[1].least = 1_GiB;
  ASSERT_TRUE(common.take(refused));
  ASSERT_TRUE(common.take(refused));
  ModelChoice smallest = critic_with(spec::UpdateMode::kStreamed);
  smallest.homes.layers = spec::Home::kDisk;
  EXPECT_EQ(common.fixed(1), (FixedChoices{{smallest}, VariantChoice{1, {2}}}));
  refused[1].least = Bytes(~0ull);
  ASSERT_FALSE(common.take(refused));
  EXPECT_EQ(common.round(), 2u) << "the round that needs least";
  EXPECT_EQ(common.refused(), 0u);
  EXPECT_EQ(common.least(), 1_GiB);
}

TEST_F(CommonChoicesTest, WhatPlansChooseOfTheJobsKeysIsOneChoiceOfAllKinds) {
  const auto variant = [&](const spec::Job& job, Bytes capacity, std::int64_t rank) {
    const PlanOrLeast found = own(job, capacity, rank);
    return found.plan ? std::optional(found.plan->variant) : std::nullopt;
  };
  for (const auto& [measure, stages] :
       {std::pair("micro_batch", "1"), std::pair("micro_batch", "2"),
        std::pair("bf16_states", "2")}) {
    SCOPED_TRACE(std::string(measure) + ", stages of the critic: " + stages);
    const spec::Job job = this->job({std::string(R"(memory.allow=["offload", ")") + measure + "\"]",
                                     std::string("critic.pipeline_model_parallel_size=") + stages});
    Bytes capacity = std::max(own(job, 100_MiB, 0).least, own(job, 100_MiB, 1).least);
    while (variant(job, capacity, 0) == variant(job, capacity, 1) && capacity < 16_GiB)
      capacity += 64_MiB;
    ASSERT_LT(capacity, 16_GiB) << "kinds choose alike without a rule";
    const Result<StagePlans> agreed = plan_stages(job, target(capacity));
    ASSERT_TRUE(agreed.ok()) << agreed.status().message();
    const MemoryPlan &one = agreed->stages[0].plan, &two = agreed->stages[1].plan;
    EXPECT_EQ(one.variant, two.variant);
    EXPECT_EQ(spec::assignments(one.changes), spec::assignments(two.changes));
    EXPECT_LE(std::max(one.peak, two.peak), capacity);
    // As if the keys were written out.
    spec::Job written = job;
    spec::apply(one.changes, written);
    written.memory.allow = {spec::Measure::kMove};
    const Result<StagePlans> same = plan_stages(written, target(capacity));
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_EQ(same->micro_batches, agreed->micro_batches);
    EXPECT_NEAR(same->seconds(), agreed->seconds(), 0.02 * same->seconds());
  }
}

// Each takes as long as the next one, but for rounding, and the first less than the last.
TEST_F(CommonChoicesTest, KindsThatTakeNearlyAsLongHaveOneOrder) {
  const spec::Job job =
      this->job({"trainer.n_gpus_per_node=3", "data.train_batch_size=96",
                 "actor_rollout_ref.actor.ppo_mini_batch_size=96", "critic.ppo_mini_batch_size=96",
                 "actor_rollout_ref.actor.pipeline_model_parallel_size=3",
                 "actor_rollout_ref.actor.pipeline_model_parallel_layout=[2,3,3]"});
  CommonChoices common(job);
  std::vector<KindOutcome> outcomes(3);
  for (std::size_t k = 0; k < 3; ++k) {
    outcomes[k].seconds = 1 + static_cast<double>(k) * 0.7e-9;
    outcomes[k].choices.models = {critic_with(static_cast<spec::UpdateMode>(k))};
  }
  for (const std::size_t kind : {1u, 2u, 0u}) {
    ASSERT_TRUE(common.take(outcomes));
    EXPECT_EQ(common.fixed(0), outcomes[kind].choices);
    for (KindOutcome& of : outcomes) of.seconds = 2;
  }
}

// Else one whose other models are larger would have to stream these first, and one whose are smaller could not.
TEST_F(CommonChoicesTest, ChoicesOfASharedModelLeaveAKindFreeWithOthers) {
  ModelChoice critic = critic_with(spec::UpdateMode::kStreamed);
  const auto planned = [&](const spec::Job& job, Bytes capacity) {
    Result<PlanOrLeast> found = plan_or_least(job, target(capacity, 1), {{critic}});
    EXPECT_TRUE(found.ok()) << found.status().message();
    return *std::move(found);
  };
  critic.homes.layers = spec::Home::kHost;
  const PlanOrLeast small = planned(this->job({"critic.tensor_model_parallel_size=2"}), 40_GiB);
  ASSERT_TRUE(small.plan);
  EXPECT_EQ(small.plan->modes.of(ModelId::kCritic).layers, spec::Home::kHost);
  for (const ModelId other : {ModelId::kActor, ModelId::kReward})
    EXPECT_EQ(small.plan->modes.of(other).layers, spec::Home::kDevice) << to_string(other);

  critic.homes.layers = spec::Home::kDevice;
  spec::Job large = this->job({"critic.model.lora_rank=4", "critic.ppo_max_token_len_per_gpu=512",
                               "actor_rollout_ref.rollout.batch_size=1",
                               "reward_model.tensor_model_parallel_size=2"});
  const Bytes streamed = planned(large, 1_MiB).least;
  std::erase(large.memory.allow, spec::Measure::kStreamWeights);
  EXPECT_LT(streamed, planned(large, 1_MiB).least);
}

TEST_F(CommonChoicesTest, OutcomesPassAsNumbers) {
  KindOutcome out;
  out.seconds = 1.25;
  out.least = 3_GiB;
  ModelChoice& first = out.choices.models.emplace_back();
  first.model = ModelId::kCritic;
  first.homes = {
      .layers = spec::Home::kDisk, .inputs = spec::Home::kHost, .update = spec::UpdateMode::kDisk};
  first.retention.emplace().blocks.resize(3);
  first.retention->blocks[1].set(spec::SavedTensor::kUp, spec::Retention::kRecompute);
  ModelChoice& second = out.choices.models.emplace_back();
  second.homes.tables = second.homes.gradients = spec::Home::kHost;
  second.homes.together = 4;
  out.choices.variant = {1, {3}};
  const KindOutcome back = KindOutcome::from_numbers(out.to_numbers());
  EXPECT_EQ(back.seconds, out.seconds);
  EXPECT_EQ(back.least, out.least);
  out.least = Bytes(~0ull);
  EXPECT_EQ(KindOutcome::from_numbers(out.to_numbers()).least, out.least);
  EXPECT_EQ(back.choices, out.choices);
}

}  // namespace
}  // namespace neap::plan
