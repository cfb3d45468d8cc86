// The smaller of two choices of a model that several kinds of ranks share.
#include "plan/search/model_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common_choices_fixture.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

using spec::ModelId;

TEST_F(CommonChoicesTest, TheSmallerOfTwoKeepsWhatBothKeep) {
  ModelChoice a{ModelId::kCritic}, b{ModelId::kCritic};
  for (ModelChoice* const choice : {&a, &b}) choice->retention.emplace().blocks.resize(2);
  a.retention->blocks[0].set(spec::SavedTensor::kGate, spec::Retention::kRecompute);
  b.retention->blocks[1].set(spec::SavedTensor::kUp, spec::Retention::kRecompute);
  b.homes.inputs = spec::Home::kHost;
  a.homes.together = 2;
  b.homes.together = 4;
  const ModelChoice both = smaller_of(a, b);
  EXPECT_EQ(both.homes.inputs, spec::Home::kHost);
  EXPECT_EQ(both.homes.together, 2);
  EXPECT_FALSE(both.retention->blocks[0].keeps(spec::SavedTensor::kGate));
  EXPECT_FALSE(both.retention->blocks[1].keeps(spec::SavedTensor::kUp));
  EXPECT_TRUE(both.retention->blocks[0].keeps(spec::SavedTensor::kUp));
}

constexpr const char* kAllowed =
    R"(memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"])";
constexpr const char* kRecomputeActor = "actor_rollout_ref.model.activation_checkpointing=full";
constexpr const char* kRecomputeCritic = "critic.model.activation_checkpointing=full";

bool plans_have(const spec::Job& job, const Target& target, std::vector<ModelChoice> choices) {
  const Result<PlanOrLeast> found = plan_or_least(job, target, {std::move(choices)});
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() && found->plan.has_value();
}

// Of one model, without a limit of memory.
std::vector<ModelChoice> listed_choices(const spec::Job& job, const Target& target, ModelId model) {
  std::vector<ModelChoice> out;
  for (std::size_t mode = 0; mode < spec::kUpdateModes; ++mode) {
    for (unsigned number = 0; number < 81; ++number) {
      ModelChoice choice{model};
      choice.homes.update = static_cast<spec::UpdateMode>(mode);
      unsigned left = number;
      for (const auto home : spec::kHomes) {
        choice.homes.*home = static_cast<spec::Home>(left % 3);
        left /= 3;
      }
      // Tables and inputs are never on disk.
      if (std::max(choice.homes.tables, choice.homes.inputs) == spec::Home::kDisk) continue;
      if (plans_have(job, target, {choice})) out.push_back(choice);
    }
  }
  return out;
}

void expect_smaller_ones_are_listed(const std::vector<ModelChoice>& listed,
                                    const std::string& where) {
  for (const ModelChoice& a : listed)
    for (const ModelChoice& b : listed)
      EXPECT_EQ(std::count(listed.begin(), listed.end(), smaller_of(a, b)), 1)
          << where << ": " << static_cast<int>(a.homes.update) << " and "
          << static_cast<int>(b.homes.update);
}

// Whatever two kinds chose, a plan can take the smaller of each part.
TEST_F(CommonChoicesTest, TheSmallerOfTwoThatPlansHaveIsOneThatPlansHave) {
  for (const char* zero : {"critic.zero_stage=0", "critic.zero_stage=3"}) {
    const spec::Job job = this->job({kAllowed, zero, kRecomputeCritic, kRecomputeActor});
    const std::vector<ModelChoice> listed = listed_choices(job, target(Bytes()), ModelId::kCritic);
    ASSERT_GT(listed.size(), 8u) << zero;
    EXPECT_TRUE(std::any_of(listed.begin(), listed.end(), [](const ModelChoice& each) {
      return each.homes.layers == spec::Home::kDisk;
    }));
    expect_smaller_ones_are_listed(listed, zero);
  }
}

TEST_F(CommonChoicesTest, TheSmallerOnesOfTwoModelsGoWithModesThatTheUserFixed) {
  for (const char* fixed : {"phase_split", "nvme"}) {
    const spec::Job job = this->job({kAllowed, std::string("memory.optimizer_offload=") + fixed,
                                     kRecomputeCritic, kRecomputeActor});
    std::vector<ModelChoice> smallest;
    for (const ModelId model : {ModelId::kActor, ModelId::kCritic}) {
      const std::vector<ModelChoice> listed = listed_choices(job, target(Bytes()), model);
      ASSERT_FALSE(listed.empty()) << fixed;
      for (const ModelChoice& each : listed)
        EXPECT_EQ(each.homes.update, listed.front().homes.update)
            << fixed << ", " << to_string(model);
      expect_smaller_ones_are_listed(listed, fixed);
      smallest.push_back(listed.front());
      for (const ModelChoice& each : listed) smallest.back() = smaller_of(smallest.back(), each);
    }
    EXPECT_EQ(smallest[0].homes.update, smallest[1].homes.update) << fixed;
    EXPECT_TRUE(plans_have(job, target(Bytes()), smallest)) << fixed;
  }
}

}  // namespace
}  // namespace neap::plan
