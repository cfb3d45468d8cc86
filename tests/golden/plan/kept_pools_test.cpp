// Which phases begin with the pages of the pool of the phase before.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden/plan/jobs.h"
#include "plan/residency/step_walk.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

class KeptPools : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job_).ok());
    target_ = target_of(job_);
  }
  [[nodiscard]] MemoryPlan plan_in(Bytes capacity) {
    target_.capacity = capacity;
    return value_or_throw(make_plan(job_, target_));
  }
  static const PhasePlan& phase(const MemoryPlan& plan, spec::PhaseId id) {
    return plan.phases.at(plan.index_of(id).value());
  }

  spec::Job job_;
  Target target_;
};

TEST_F(KeptPools, StayForAPhaseThatNeedsAsMuch) {
  const MemoryPlan plan = plan_in(100_GiB);
  const PhasePlan& critic = phase(plan, spec::PhaseId::kTrainCritic);
  const PhasePlan& actor = phase(plan, spec::PhaseId::kTrainActor);
  ASSERT_GT(actor.transient, critic.transient);
  EXPECT_EQ(critic.pool_for, std::vector{spec::PhaseId::kTrainActor});
  EXPECT_TRUE(actor.pool_for.empty()) << "a rollout needs less";
}

TEST_F(KeptPools, AreFreedWhereTagsMove) {
  target_.capacity = {};
  const MemoryPlan plan = plan_in(value_or_throw(least_capacity(job_, target_)));
  const std::vector<Visit> walk = walk_of(plan);
  int kept = 0;
  int freed = 0;
  for (std::size_t i = 0; i < walk.size(); ++i) {
    const Visit& next = walk[(i + 1) % walk.size()];
    const std::vector<spec::PhaseId>& followers = plan.phases[walk[i].phase].pool_for;
    const PhasePlan& follower = plan.phases[next.phase];
    const bool keeps =
        std::find(followers.begin(), followers.end(), follower.id) != followers.end();
    const PhaseSchedule& schedule = plan.schedule[next.phase];
    const bool moves = !(next.again ? schedule.again : schedule.moves).empty();
    ++(keeps ? kept : freed);
    EXPECT_FALSE(keeps && moves) << plan.phases[walk[i].phase].name() << " to " << follower.name();
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(freed, 0);
  EXPECT_TRUE(phase(plan, spec::PhaseId::kGenerate).pool_for.empty());
}

}  // namespace
}  // namespace neap::plan
